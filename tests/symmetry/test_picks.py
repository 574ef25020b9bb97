"""Picks as objects: the entries they select, and equality by value."""

import jax.numpy as jnp
import numpy as np
import pytest

from undertow.symmetry.picks import JointPick, LeafPick, pick_of

PARAMS = {"a": jnp.arange(24.0).reshape(2, 3, 4), "b": jnp.arange(5.0), "c": jnp.arange(6.0).reshape(2, 3)}

PICKS = {
    "the whole leaf": (LeafPick(0), lambda p: p["a"]),
    "an axis moved to the front": (LeafPick(0, 2, 0), lambda p: jnp.moveaxis(p["a"], 2, 0)),
    "an axis moved to the end": (LeafPick(0, 0, -1), lambda p: jnp.moveaxis(p["a"], 0, -1)),
    "a range at the front": (LeafPick(0, 1, 0, 1, 3), lambda p: jnp.moveaxis(p["a"], 1, 0)[1:3]),
    "a range at the end": (LeafPick(0, 1, -1, 0, 2), lambda p: jnp.moveaxis(p["a"], 1, -1)[..., 0:2]),
    "an axis of a matrix": (LeafPick(2, 1, 0, 1, 3), lambda p: p["c"].T[1:3]),
    "chosen indices": (LeafPick(0, 2, 0, chosen=(3, 0)), lambda p: jnp.moveaxis(p["a"], 2, 0)[np.array([3, 0])]),
    "a vector": (LeafPick(1, 0, -1, chosen=(4,)), lambda p: p["b"][np.array([4])]),
}


@pytest.mark.parametrize("case", PICKS)
def test_a_leaf_pick_selects_the_same_entries_as_a_function(case):
    pick, function = PICKS[case]
    np.testing.assert_array_equal(pick(PARAMS), function(PARAMS))


def test_picks_of_equal_fields_are_equal_and_hashable():
    """Static fields of a compiled function are compared by value, so equal picks do not compile twice."""
    assert pick_of([LeafPick(1)]) == LeafPick(1)
    joint = pick_of([LeafPick(0, 1), LeafPick(1)])
    assert joint == JointPick((LeafPick(0, 1), LeafPick(1)))
    assert len({joint, pick_of([LeafPick(0, 1), LeafPick(1)])}) == 1
    first, second = joint(PARAMS)
    np.testing.assert_array_equal(first, jnp.moveaxis(PARAMS["a"], 1, 0))
    np.testing.assert_array_equal(second, PARAMS["b"])
