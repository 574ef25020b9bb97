"""GL(d) between two factors: orbit, charge and dimension against dense matrices."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import undertow as ut
from tests.mistakes import assert_explained
from tests.symmetry import nets

AMOUNT = np.array([[0.3, -0.2, 0.1], [-0.2, 0.5, 0.0], [0.1, 0.0, -0.4]])


@pytest.fixture
def params(x64):
    """Factors of sizes 2 x 3 and 3 x 4, and a leaf that the group does not act on."""
    rng = np.random.default_rng(0)
    return {"U": jnp.asarray(rng.normal(size=(2, 3))), "W": jnp.asarray(rng.normal(size=(3, 4))), "b": jnp.ones(2)}


def test_the_orbit_multiplies_by_a_matrix_exponential_and_its_inverse(params):
    moved = nets.FACTORS.orbit(params, AMOUNT)
    np.testing.assert_allclose(moved["U"], params["U"] @ expm(AMOUNT), rtol=1e-12)
    np.testing.assert_allclose(moved["W"], expm(-AMOUNT) @ params["W"], rtol=1e-12)
    np.testing.assert_allclose(moved["U"] @ moved["W"], params["U"] @ params["W"], rtol=1e-12)
    np.testing.assert_array_equal(moved["b"], params["b"])


def test_one_number_is_a_multiple_of_the_identity(params):
    moved = nets.FACTORS.orbit(params, 0.7)
    np.testing.assert_allclose(moved["U"], np.exp(0.7) * params["U"], rtol=1e-12)
    np.testing.assert_allclose(moved["W"], np.exp(-0.7) * params["W"], rtol=1e-12)


def test_only_the_symmetric_part_of_an_amount_counts(params):
    turned = AMOUNT + np.array([[0.0, 1.0, 2.0], [-1.0, 0.0, 3.0], [-2.0, -3.0, 0.0]])
    np.testing.assert_allclose(nets.FACTORS.orbit(params, turned)["U"], params["U"] @ expm(AMOUNT), rtol=1e-12)


def test_the_charge_is_the_difference_of_gram_matrices(params):
    u, w = np.asarray(params["U"]), np.asarray(params["W"])
    np.testing.assert_allclose(nets.FACTORS.charge(params), (u.T @ u - w @ w.T) / 2, rtol=1e-12)
    np.testing.assert_allclose(nets.FACTORS.norm(params), np.sqrt((u**2).sum() + (w**2).sum()), rtol=1e-12)


def test_the_charge_of_a_pair_is_that_of_its_sum(params):
    """pair(a, b) is bilinear: C(a + b) - C(a) - C(b) = (pair(a, b) + pair(b, a))/2, plus part less minus part."""
    other = {name: jnp.cos(leaf) for name, leaf in params.items()}
    both = {name: params[name] + other[name] for name in params}
    charge = nets.FACTORS.charge
    mixed = sum(plus - minus for plus, minus in (nets.FACTORS.pair(params, other), nets.FACTORS.pair(other, params)))
    np.testing.assert_allclose(charge(both) - charge(params) - charge(other), mixed / 2, rtol=1e-10)


def test_factors_of_more_axes_are_flattened(x64):
    """A kernel whose last axis is the inner one, and one whose first axis is."""
    params = {"U": jnp.arange(12.0).reshape(2, 2, 3), "W": jnp.ones((3, 2, 2))}
    u, w = nets.FACTORS.factors(params)
    assert (u.shape, w.shape) == ((4, 3), (3, 4))
    moved = nets.FACTORS.orbit(params, AMOUNT)
    assert (moved["U"].shape, moved["W"].shape) == ((2, 2, 3), (3, 2, 2))
    np.testing.assert_allclose(moved["U"][1, 0], np.asarray(params["U"][1, 0]) @ expm(AMOUNT), rtol=1e-12)


def test_dimension_and_description(params):
    assert nets.FACTORS.dimension(params) == 6
    assert nets.FACTORS.describe(params) == "GL(3) between U and W"
    assert ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"], label="adapter").describe(params) == "adapter"


PARAMS = nets.weights(U=(2, 3), W=(4, 2), b=(4,))
MISTAKES = {
    "factors that do not multiply": (
        lambda: nets.FACTORS.charge(PARAMS),
        r"do not multiply: `left` has shape \(2, 3\), `right` \(4, 2\)",
    ),
    "two arrays for one factor": (
        lambda: ut.DoubleRotation(lambda p: (p["U"], p["b"]), lambda p: p["W"]).charge(PARAMS),
        "one array each",
    ),
    "a number as a factor": (
        lambda: ut.DoubleRotation(lambda p: p["U"], lambda p: p["b"][0]).charge(PARAMS),
        "do not multiply",
    ),
    "one leaf as both factors": (
        lambda: ut.DoubleRotation(lambda p: p["U"], lambda p: p["U"].T).charge(PARAMS),
        "picked twice, by left and right",
    ),
    "a vector of amounts": (
        lambda: nets.FACTORS.orbit(nets.weights(U=(2, 3), W=(3, 2)), jnp.ones(3)),
        r"`amount` has shape \(3,\); give one number, or an array of shape \(3, 3\)",
    ),
    "amounts of another size": (
        lambda: nets.FACTORS.orbit(nets.weights(U=(2, 3), W=(3, 2)), jnp.eye(2)),
        r"`DoubleRotation.orbit\(params, amount\)`: `amount` has shape \(2, 2\)",
    ),
    "no function": (lambda: ut.DoubleRotation(lambda p: p, 3), r"`DoubleRotation\(right=3\)`: `right` is an int"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
