"""Scale invariance: orbit and charge by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.mistakes import assert_explained

PARAMS = {"w": jnp.array([[3.0, 0.0], [0.0, 4.0]]), "v": jnp.array([1.0, 2.0]), "gain": jnp.array(2.0)}
WEIGHTS = ut.Scaling(lambda p: (p["w"], p["v"][:1]))


def test_the_orbit_multiplies_the_picked_entries_alone():
    moved = WEIGHTS.orbit(PARAMS, np.log(2.0))
    np.testing.assert_allclose(moved["w"], 2 * PARAMS["w"], rtol=1e-6)
    np.testing.assert_allclose(moved["v"], [2.0, 2.0], rtol=1e-6)
    assert float(moved["gain"]) == 2


def test_the_charge_is_half_the_square_of_the_norm():
    assert float(WEIGHTS.charge(PARAMS)) == (9 + 16 + 1) / 2
    plus, minus = WEIGHTS.pair(PARAMS, {"w": jnp.ones((2, 2)), "v": jnp.ones(2), "gain": jnp.array(5.0)})
    assert (float(plus), float(minus)) == (3 + 4 + 1, 0)
    np.testing.assert_allclose(WEIGHTS.norm(PARAMS), np.sqrt(26), rtol=1e-6)


def test_dimension_and_description():
    assert WEIGHTS.dimension(PARAMS) == 1
    assert WEIGHTS.describe(PARAMS) == "scaling of w, v"
    assert ut.Scaling(lambda p: p["w"], label="the kernel").describe(PARAMS) == "the kernel"


MISTAKES = {
    "no function": (lambda: ut.Scaling(0), r"`Scaling\(where=0\)`: `where` is an int; give a function"),
    "an amount for each column": (
        lambda: WEIGHTS.orbit(PARAMS, jnp.ones(2)),
        r"`Scaling.orbit\(params, amount\)`: `amount` has shape \(2,\); give one number\.",
    ),
    "a multiple of an entry": (lambda: ut.Scaling(lambda p: 0.5 * p["w"]).charge(PARAMS), "must return entries"),
    "whole numbers as params": (lambda: ut.Scaling(lambda p: p).charge(jnp.arange(2)), "`Scaling`.*dtype int32"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
