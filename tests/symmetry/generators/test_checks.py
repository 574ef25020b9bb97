"""Checks of picks and amounts, and sums over picked entries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.mistakes import assert_explained
from tests.symmetry import nets
from undertow.symmetry.generators import _checks as checks

HUGE = {
    "neurons": (nets.RELU_LAYERS[0], nets.relu_params()),
    "scaling": (nets.SCALE, nets.weights(u=(2, 3), w=(3, 2))),
    "rotation": (nets.FACTORS, nets.weights(U=(2, 3), W=(3, 2))),
    "diagonal generator": (
        ut.Exponential({"U": jnp.ones((2, 3)), "W": -jnp.ones((3, 2))}), nets.weights(U=(2, 3), W=(3, 2)),
    ),
    "generator as a function": (ut.Exponential(lambda v: v[::-1]), jnp.array([1.0, 2.0])),
}  # fmt: skip


@pytest.mark.parametrize("what", HUGE)
def test_amounts_out_of_range_are_refused(what, as_a_user):
    """At once: the exponential of a function took a number of steps in proportion to the amount."""
    symmetry, params = HUGE[what]
    for amount in (1e30, -1e30):
        with pytest.raises(ValueError, match=r"overflows; give amounts between -88\.\d and 88\.\d"):
            symmetry.orbit(params, amount)
    for amount in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=rf"`amount` is {amount}; give finite numbers"):
            symmetry.orbit(params, amount)
    shape = np.shape(symmetry.charge(params))
    if shape:
        with pytest.raises(ValueError, match="give finite numbers"):
            symmetry.orbit(params, np.full(shape, np.nan))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(symmetry.orbit(params, 40.0)))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_the_largest_exponent_is_that_of_the_type(dtype):
    largest = checks.largest_exponent(jnp.zeros(2, dtype))
    assert np.isfinite(jnp.exp(jnp.asarray(0.99 * largest, dtype)).astype(jnp.float32))
    assert np.isinf(jnp.exp(jnp.asarray(1.02 * largest, dtype)).astype(jnp.float32))


def test_the_coarsest_leaf_decides():
    mixed = {"a": jnp.zeros(2), "b": jnp.zeros(2, jnp.float16)}
    assert checks.largest_exponent(mixed) == pytest.approx(np.log(65504))


def test_the_size_of_a_generator_and_the_norm_of_a_matrix_count():
    """exp(amount A): an eigenvalue of 2 halves the bound; of a matrix the largest singular value counts."""
    point = jnp.zeros(2)
    checks.check_amount("f", 60.0, point)
    with pytest.raises(ValueError, match=r"`f\.orbit\(params, amount\)`: with `amount` 60 .*between -44.4 and 44.4"):
        checks.check_amount("f", 60.0, point, size=2.0)
    checks.check_amount("f", np.array([[0.0, 60.0], [60.0, 0.0]]), point)
    with pytest.raises(ValueError, match="with `amount` 120 exp"):
        checks.check_amount("f", np.full((2, 2), 60.0), point)
    checks.check_amount("f", np.zeros(0), point)


def test_a_traced_amount_is_not_checked():
    assert jax.jit(lambda a: checks.check_amount("f", a, jnp.zeros(2)) or a)(jnp.inf) == jnp.inf


def test_sums_over_picked_entries():
    params = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.array([10.0, 20.0])}
    both = lambda p: (p["w"], p["b"])
    assert float(checks.picked_sums(both, params, None)) == 15 + 30
    np.testing.assert_array_equal(checks.picked_sums(both, params, 0), [3 + 10, 12 + 20])
    np.testing.assert_array_equal(checks.picked_sums(lambda p: p["w"], params, -1), [3, 5, 7])


PARAMS = nets.weights(U=(2, 3), W=(4, 2), b=(4,))
MISTAKES = {
    "an entry on both sides": (
        lambda: ut.Rescaling(lambda p: p["b"], lambda p: p["b"]).charge(PARAMS),
        "`Rescaling`: an entry of params is picked twice, by outgoing and incoming",
    ),
    "an entry twice on one side": (
        lambda: ut.Scaling(lambda p: (p["b"], p["b"][:1])).charge(PARAMS),
        "picked twice, by where",
    ),
    "no function": (
        lambda: ut.Scaling("w"),
        r"`Scaling\(where='.*'\)`: `where` is a str; give a function that is called as `where\(params\)`",
    ),
    "not the entries themselves": (
        lambda: ut.Scaling(lambda p: jnp.zeros(2)).charge(PARAMS),
        r"`Scaling\(where=\.\.\.\)`: `where\(params\)` must return entries of params",
    ),
    "no entries": (lambda: ut.Scaling(lambda p: ()).charge(PARAMS), "must return entries of params"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
