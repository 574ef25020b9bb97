"""The claims of the paper `heterogeneity`, one file a claim or a family of like ones."""
