"""Find and prove the exponential symmetries of a PyTorch network."""
