"""Move a PyTorch network to its noise equilibrium."""
