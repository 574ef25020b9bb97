"""Heterogeneity towards invariance (Xu, Gu, Fang, arXiv 2403.01420)."""
