"""Picks: the entries they select, and writing back."""

import jax.numpy as jnp

from undertow.symmetry import selection


def test_one_row_is_a_piece_of_its_leaf():
    params = {"w": jnp.zeros((4, 3)), "v": jnp.zeros(2)}
    (piece,) = selection.pieces(lambda p: p["w"][2:3], params, 0)
    assert (piece.leaf, piece.axis, piece.own.tolist(), piece.other) == (1, 0, [2], None)
