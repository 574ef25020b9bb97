"""Rescaling of neurons: orbit and charge by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.mistakes import assert_explained
from tests.symmetry import nets

PARAMS = {
    "out": jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "in": jnp.array([[1.0, -1.0], [2.0, 0.0], [0.0, 3.0]]),
    "bias": jnp.array([1.0, 2.0, -1.0]),
    "rest": jnp.array([7.0]),
}
OUT, IN, BIAS = (np.asarray(PARAMS[name]) for name in ("out", "in", "bias"))
NEURONS = ut.Rescaling(lambda p: p["out"], lambda p: (p["in"], p["bias"]), neurons=True)
TOGETHER = ut.Rescaling(lambda p: p["out"], lambda p: (p["in"], p["bias"]))


def test_each_neuron_has_its_own_amount():
    factors = np.array([2.0, 1.0, 0.5])
    moved = NEURONS.orbit(PARAMS, jnp.log(factors))
    np.testing.assert_allclose(moved["out"], OUT * factors, rtol=1e-6)
    np.testing.assert_allclose(moved["in"], IN / factors[:, None], rtol=1e-6)
    np.testing.assert_allclose(moved["bias"], BIAS / factors, rtol=1e-6)
    np.testing.assert_array_equal(moved["rest"], PARAMS["rest"])


@pytest.mark.parametrize("symmetry", [NEURONS, TOGETHER], ids=["neurons", "together"])
def test_one_amount_moves_all_neurons(symmetry):
    moved = symmetry.orbit(PARAMS, np.log(2.0))
    np.testing.assert_allclose(moved["out"], 2 * OUT, rtol=1e-6)
    np.testing.assert_allclose(moved["in"], IN / 2, rtol=1e-6)
    np.testing.assert_allclose(moved["bias"], BIAS / 2, rtol=1e-6)


def test_the_charge_is_half_the_difference_of_squares():
    """1/2 (|outgoing|^2 - |incoming|^2): for each neuron, or for all of them together."""
    each = ((OUT**2).sum(0) - (IN**2).sum(1) - BIAS**2) / 2
    np.testing.assert_allclose(NEURONS.charge(PARAMS), each, rtol=1e-6)
    np.testing.assert_allclose(TOGETHER.charge(PARAMS), each.sum(), rtol=1e-6)
    plus, minus = NEURONS.sums(PARAMS)
    np.testing.assert_array_equal(plus, OUT.sum(0))
    np.testing.assert_array_equal(minus, IN.sum(1) + BIAS)
    length = np.sqrt((OUT**2).sum() + (IN**2).sum() + (BIAS**2).sum())
    np.testing.assert_allclose(NEURONS.norm(PARAMS), length, rtol=1e-6)


def test_dimension_and_description():
    assert NEURONS.dimension(PARAMS) == 3
    assert TOGETHER.dimension(PARAMS) == 1
    assert NEURONS.describe(PARAMS) == "rescaling of 3 neurons, in, bias against out"
    assert TOGETHER.describe(PARAMS) == "rescaling, in, bias against out"
    named = ut.Rescaling(lambda p: p["out"], lambda p: p["in"], label="first layer")
    assert named.describe(PARAMS) == "first layer"


OTHER = nets.weights(U=(2, 3), W=(4, 2), b=(4,))
MISTAKES = {
    "neurons that do not match": (
        lambda: ut.Rescaling(lambda p: p["U"], lambda p: p["W"], neurons=True).charge(OTHER),
        r"do not multiply: the last axes of `outgoing` have \[3\] neurons, the first axes of `incoming` \[4\]",
    ),
    "a number as a neuron": (
        lambda: ut.Rescaling(lambda p: p["b"][0], lambda p: p["b"][1], neurons=True).charge(OTHER),
        "do not multiply",
    ),
    "amounts for other neurons": (
        lambda: NEURONS.orbit(PARAMS, jnp.ones(2)),
        r"`Rescaling.orbit\(params, amount\)`: `amount` has shape \(2,\); give one number, or an array of shape \(3,\)",
    ),
    "an amount for each neuron of one generator": (
        lambda: TOGETHER.orbit(PARAMS, jnp.ones(3)),
        r"`amount` has shape \(3,\); give one number\.",
    ),
    "no function": (
        lambda: ut.Rescaling(lambda p: p["U"], "W"),
        r"`Rescaling\(incoming='.*'\)`: `incoming` is a str; give a function that is called as",
    ),
    "whole numbers as params": (
        lambda: ut.Rescaling(lambda p: p[0], lambda p: p[1]).charge((jnp.ones(2), jnp.arange(2))),
        r"`params\[1\]` has dtype int32",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])


def test_neurons_together_need_not_match():
    """Without `neurons=True` there is one generator, for arrays of any shapes."""
    whole = ut.Rescaling(lambda p: p["U"], lambda p: p["W"])
    expected = (np.sum(np.asarray(OTHER["U"]) ** 2) - np.sum(np.asarray(OTHER["W"]) ** 2)) / 2
    np.testing.assert_allclose(whole.charge(OTHER), expected, rtol=1e-5)
