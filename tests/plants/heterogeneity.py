"""Alternatives of the claims of `heterogeneity`."""

from plants import Plant

PLANTS: dict[str, Plant] = {}
