"""A general symmetric generator: its exponential, its charge and the test of its symmetry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import undertow as ut
from tests.mistakes import assert_explained
from undertow import _trees as trees


def test_an_exponential_of_a_function_matches_the_matrix_exponential(x64):
    matrix = jax.random.normal(jax.random.key(0), (6, 6), jnp.float64)
    matrix = matrix + matrix.T
    symmetry = ut.Exponential(lambda v: matrix @ v)
    v = jax.random.normal(jax.random.key(1), (6,), jnp.float64)
    np.testing.assert_allclose(symmetry.orbit(v, 1.7), expm(1.7 * np.asarray(matrix)) @ v, rtol=1e-9)


def test_amounts_out_of_range_inside_jit_do_not_hang():
    symmetry, params = ut.Exponential(lambda v: v[::-1]), jnp.array([1.0, 2.0])
    moved = jax.jit(symmetry.orbit)
    for amount in (1e30, -1e30, jnp.nan, jnp.inf):
        assert np.isnan(moved(params, amount)).all()
    np.testing.assert_allclose(moved(params, 1.0), symmetry.orbit(params, 1.0))


def test_an_orbit_of_a_function_has_derivatives_in_both_modes(x64):
    """The derivative by the amount is A v, here with v -> (cosh v1 + sinh v2, ...)."""
    symmetry, v, amount = ut.Exponential(lambda v: v[::-1]), jnp.array([1.0, 0.5]), jnp.asarray(0.7)
    turned = np.array([[np.cosh(0.7), np.sinh(0.7)], [np.sinh(0.7), np.cosh(0.7)]])
    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(lambda a: symmetry.orbit(v, a))(amount), (turned @ v)[::-1], rtol=1e-9)
        np.testing.assert_allclose(derivative(lambda p: symmetry.orbit(p, amount))(v), turned, rtol=1e-9)
    np.testing.assert_allclose(jax.hessian(lambda a: symmetry.orbit(v, a)[0])(amount), (turned @ v)[0], rtol=1e-9)


def test_an_orbit_uses_the_present_value_of_a_name_of_the_generator():
    matrix = np.eye(2)
    symmetry = ut.Exponential(lambda v: jnp.asarray(matrix, v.dtype) @ v)
    np.testing.assert_allclose(symmetry.orbit(jnp.ones(2), 1.0), np.e, rtol=1e-6)
    matrix = 2 * np.eye(2)
    np.testing.assert_allclose(symmetry.orbit(jnp.ones(2), 1.0), np.e**2, rtol=1e-6)


MATRIX = np.array([[1.0, 0.5, 0.0], [0.5, -1.0, 0.3], [0.0, 0.3, 2.0]])
DIAGONAL = {"a": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}


def test_the_charge_is_half_the_quadratic_form(x64):
    """C = 1/2 v'Av, as the difference of a plus and a minus part of which the latter is zero."""
    symmetry, v = ut.Exponential(lambda v: jnp.asarray(MATRIX) @ v), np.array([1.0, 2.0, -1.0])
    np.testing.assert_allclose(symmetry.charge(jnp.asarray(v)), v @ MATRIX @ v / 2, rtol=1e-12)
    w = np.array([0.0, 1.0, 3.0])
    plus, minus = symmetry.pair(jnp.asarray(v), jnp.asarray(w))
    np.testing.assert_allclose(plus - minus, v @ MATRIX @ w, rtol=1e-12)
    assert float(minus) == 0
    np.testing.assert_allclose(symmetry.norm(jnp.asarray(v)), np.linalg.norm(MATRIX @ v), rtol=1e-12)


def test_a_diagonal_multiplies_each_entry_by_its_exponential():
    v = {"a": jnp.array([1.0, 3.0]), "b": jnp.array(-2.0)}
    moved = trees.ravel(ut.Exponential(DIAGONAL).orbit(v, 0.7))
    np.testing.assert_allclose(moved, np.array([1.0, 3.0, -2.0]) * np.exp([0.7, -1.4, 0.35]), rtol=1e-6)


def test_a_generator_of_zero_moves_nothing():
    v = jnp.array([1.0, 2.0])
    for generator in (jnp.zeros(2), lambda v: 0 * v):
        np.testing.assert_array_equal(ut.Exponential(generator).orbit(v, 1e6), v)


def test_the_bound_of_an_amount_is_that_of_the_largest_eigenvalue():
    """The eigenvalue -3 in absolute value: amounts up to log(3.4e38)/3 = 29.6 in single precision."""
    symmetry = ut.Exponential(jnp.array([1.0, -3.0]))
    assert np.isfinite(symmetry.orbit(jnp.ones(2), 29.0)).all()
    with pytest.raises(ValueError, match=r"give amounts between -29\.6 and 29\.6"):
        symmetry.orbit(jnp.ones(2), 30.0)


def test_a_generator_has_one_dimension_and_its_label():
    assert ut.Exponential(DIAGONAL).dimension(DIAGONAL) == 1
    assert ut.Exponential(DIAGONAL).describe(DIAGONAL) == "a generator of no known kind"
    assert ut.Exponential(DIAGONAL, label="balance").describe(DIAGONAL) == "balance"


MISTAKES = {
    "a rotation as generator": (
        lambda: ut.Exponential(lambda v: jnp.stack([v[1], -v[0]])).charge(jnp.ones(2)),
        "the generator is not symmetric .*a rotation, for example",
    ),
    "a generator of another shape": (
        lambda: ut.Exponential(lambda v: v[:1]).charge(jnp.ones(2)),
        "give a function that returns a vector like params",
    ),
    "a diagonal for other params": (
        lambda: ut.Exponential({"a": jnp.ones(2)}).charge(DIAGONAL),
        "give a vector like params",
    ),
    "two amounts": (
        lambda: ut.Exponential(jnp.ones(2)).orbit(jnp.ones(2), jnp.ones(2)),
        r"`Exponential.orbit\(params, amount\)`: `amount` has shape \(2,\); give one number\.",
    ),
    "a generator that is NaN": (lambda: ut.Exponential(jnp.array([1.0, jnp.nan])).charge(jnp.ones(2)), "not symmetric"),
    "whole numbers as params": (lambda: ut.Exponential(jnp.ones(2)).charge(jnp.arange(2)), "`Exponential`.*int32"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])


@pytest.mark.parametrize("size", [1e-5, 1e5])
def test_a_generator_is_symmetric_relative_to_its_size(size):
    params = jnp.ones(2)
    assert float(ut.Exponential(lambda v: size * jnp.stack([v[0] + 3 * v[1], 3 * v[0]])).charge(params)) > 0
    with pytest.raises(ValueError, match="the generator is not symmetric"):
        ut.Exponential(lambda v: size * jnp.stack([v[1], -v[0]])).charge(params)
