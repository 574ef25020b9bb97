"""The claims of the paper `heterogeneity`, one file per claim or family of similar claims."""
