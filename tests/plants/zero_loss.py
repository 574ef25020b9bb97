"""Alternatives of the claims of `zero_loss`."""

from plants import Plant

PLANTS: dict[str, Plant] = {}
