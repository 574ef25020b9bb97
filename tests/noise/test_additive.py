"""Additive noise: the covariance of its factor, and gradient descent as a noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests import dense
from tests.kinds import factor, params, problem
from tests.mistakes import assert_explained
from undertow import _trees as trees
from undertow.noise.additive import noiseless

POINT = params()


def test_a_draw_is_the_gradient_plus_the_factor_times_normals():
    noise, normals = ut.Additive(problem(), factor), jnp.array([0.5, -2.0, 1.0])
    disturbance = dense.factor_matrix(factor(POINT)) @ np.asarray(normals)
    expected = np.asarray(trees.ravel(problem().gradient(POINT))) + disturbance
    np.testing.assert_allclose(trees.ravel(noise.gradient(POINT, normals)), expected, rtol=1e-5, atol=1e-6)


def test_the_covariance_is_that_of_the_factor_at_the_given_params():
    noise = ut.Additive(problem(), factor)
    for point in (POINT, trees.scale(2.0, POINT)):
        columns = dense.factor_matrix(factor(point))
        np.testing.assert_allclose(dense.matrix(noise.covariance(point).mv, point), columns @ columns.T, rtol=1e-5)


def test_the_number_of_normals_is_the_trailing_axis_of_the_factor():
    noise = ut.Additive(problem(), factor)
    assert noise.randomness(jax.random.key(0), 5, POINT).shape == (5, 3)
    assert noise.randomness(jax.random.key(0), 5).shape == (5,)  # keys: without params, k is not known


def test_gradient_descent_has_no_noise():
    steady = noiseless(problem())
    draws = [trees.ravel(steady.draw(seed, POINT)) for seed in (0, 1)]
    np.testing.assert_array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[0], trees.ravel(problem().gradient(POINT)))
    assert float(steady.covariance(POINT).trace()) == 0


def run(noise):
    return ut.descend(noise, POINT, step_size=0.1, steps=10, key=0)


MISTAKES = {
    "a factor without a trailing axis": (
        lambda: ut.Additive(problem(), lambda p: p).covariance(POINT),
        r"shape \(2, 3\) where params have \(2, 3\); give \(2, 3, 'k'\)",
    ),
    "a factor that is no pytree like params": (
        lambda: run(ut.Additive(problem(), lambda p: jnp.ones((8, 2)))),
        "a pytree like params",
    ),
    "a factor with two ranks": (
        lambda: run(ut.Additive(problem(), lambda p: {"inner": jnp.ones((2, 3, 1)), "outer": jnp.ones((2, 4))})),
        "use one k",
    ),
    "a factor that is a matrix": (lambda: ut.Additive(problem(), jnp.ones((2, 2))), "lambda params: B"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
