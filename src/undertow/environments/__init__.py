"""Environments: when heterogeneity between batches filters a signal out, and when it does not."""
