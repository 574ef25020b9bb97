"""Alternatives of the claims of `noise_equilibrium`."""

from plants import Plant

PLANTS: dict[str, Plant] = {}
