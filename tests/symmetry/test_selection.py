"""Picks: the entries they select, and writing back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.symmetry import selection


def test_one_row_is_a_piece_of_its_leaf():
    params = {"w": jnp.zeros((4, 3)), "v": jnp.zeros(2)}
    (piece,) = selection.pieces(lambda p: p["w"][2:3], params, 0)
    assert (piece.leaf, piece.axis, piece.own.tolist(), piece.other) == (1, 0, [2], None)


PICKS = {
    "a leaf": lambda p: p["w"],
    "a transpose": lambda p: p["w"].T,
    "rows": lambda p: p["w"][1:3],
    "a tuple": lambda p: (p["w"][:, :2], p["v"]),
}


@pytest.mark.parametrize("case", PICKS)
def test_scatter_is_the_transpose_of_picking(case):
    """<pick(a), b> = <a, scatter(b)> for all a and b."""
    pick = PICKS[case]
    params = {"w": jnp.arange(12.0).reshape(4, 3), "v": jnp.array([5.0, -1.0])}
    values = jax.tree.map(lambda x: jnp.cos(x) + 2, pick(params))
    products = jax.tree.map(lambda x, y: jnp.sum(x * y), pick(params), values)
    back = selection.scatter(pick, params, values)
    other = sum(jnp.sum(params[k] * back[k]) for k in params)
    np.testing.assert_allclose(sum(jax.tree.leaves(products)), other, rtol=1e-6)


@pytest.mark.parametrize("case", PICKS)
def test_replacing_entries_changes_these_entries_only(case):
    pick = PICKS[case]
    params = {"w": jnp.arange(12.0).reshape(4, 3), "v": jnp.array([5.0, -1.0])}
    values = jax.tree.map(lambda x: x + 100, pick(params))
    moved = selection.replace(pick, params, values)
    for a, b in zip(jax.tree.leaves(pick(moved)), jax.tree.leaves(values), strict=True):
        np.testing.assert_array_equal(a, b)
    changed = sum(int(jnp.sum(moved[k] != params[k])) for k in params)
    assert changed == sum(x.size for x in jax.tree.leaves(values))


def test_entries_are_numbered_in_the_order_of_the_leaves():
    params = {"v": jnp.zeros(2), "w": jnp.zeros((2, 3))}
    (column,) = selection.entries(lambda p: p["w"][:, 1], params)
    np.testing.assert_array_equal(column, [3, 6])


def test_entries_of_two_leaves_or_without_a_grid_are_not_a_piece():
    params = {"v": jnp.zeros(3), "w": jnp.zeros((3, 3))}
    assert selection.pieces(lambda p: jnp.concatenate([p["v"], p["w"][0]]), params, 0) is None
    assert selection.pieces(lambda p: jnp.diagonal(p["w"]), params, 0) is None
    assert selection.pieces(lambda p: p["v"][0], params, 0) is None
