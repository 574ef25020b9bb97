"""Parameter symmetry and noise equilibrium of SGD (Ziyin, Wang, Li, Wu, arXiv 2402.07193)."""

__all__ = ["TITLE"]

TITLE = "Parameter Symmetry and Noise Equilibrium of SGD"
