"""Heterogeneity towards invariance (Xu, Gu, Fang, arXiv 2403.01420)."""

__all__ = ["TITLE"]

TITLE = "The Implicit Bias of Heterogeneity towards Invariance"
