"""Measure gradient noise along symmetries while a PyTorch network trains."""
