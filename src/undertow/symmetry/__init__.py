"""Exponential symmetries of a loss: their charges, what noise does to them, and where that ends."""
