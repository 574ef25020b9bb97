"""Exponential symmetries of a loss: their charges, the Noether flow, and the noise equilibrium."""
