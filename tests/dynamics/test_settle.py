"""The end of gradient flow, where it is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import params, population
from tests.mistakes import assert_explained
from undertow.dynamics.settle import _normal_step


def test_circle_keeps_the_angle(x64):
    circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    for start in ([0.9, 1.2], [-0.3, 0.1], [2.0, 0.0]):
        start = jnp.array(start)
        end = ut.settle(circle, start)
        np.testing.assert_allclose(end, start / jnp.linalg.norm(start), atol=1e-8)


def test_invariants_of_a_factorisation(x64):
    """Gradient flow of (u v - 1)^2/2 conserves u^2 - v^2 and ends at u v = 1."""
    task = ut.Problem(lambda p, _: (p["u"] * p["v"] - 1) ** 2 / 2, jnp.zeros(1))
    end = ut.settle(task, {"u": jnp.array(0.5), "v": jnp.array(0.2)})
    np.testing.assert_allclose(end["u"] * end["v"], 1.0, atol=1e-8)
    np.testing.assert_allclose(end["u"] ** 2 - end["v"] ** 2, 0.21, rtol=1e-7)


def test_a_flow_without_an_end_is_an_error():
    slope = ut.Problem(lambda x, _: x, jnp.zeros(1))
    with pytest.raises(Exception, match="did not reach"):
        ut.settle(slope, jnp.array(0.0), max_steps=50)


def ellipse(x, _):
    return (x[0] ** 2 + 4 * x[1] ** 2 - 1) ** 2 / 8


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_normal_step_leaves_the_tangent_alone(dtype, x64):
    """A little off the ellipse, where the curvature along it is of the size of the distance: against NumPy."""
    distance = 2e-3 if dtype == jnp.float32 else 2e-5
    x = jnp.array([np.sqrt(0.5), np.sqrt(0.125) + distance], dtype)
    problem = ut.Problem(ellipse, jnp.zeros(1, dtype))
    step = np.asarray(jax.jit(lambda x: _normal_step(problem, x))(x))
    exact = jnp.asarray(x, jnp.float64)
    gradient = np.asarray(jax.grad(ellipse)(exact, 0.0))
    values, vectors = np.linalg.eigh(jax.hessian(ellipse)(exact, 0.0))
    across = vectors[:, values.argmax()]
    expected = across * (across @ gradient) / values.max()
    assert np.linalg.norm(step - expected) < 0.05 * np.linalg.norm(expected)


def test_a_saddle_is_detected_beside_a_larger_curvature(x64):
    """The negative curvature is a tenth of the largest one; the start is on the stable manifold of the saddle."""
    saddle = ut.Problem(lambda w, _: (w[0] ** 2 - 0.1 * w[1] ** 2) / 2, jnp.zeros(1))
    with pytest.raises(Exception, match="ends at a saddle"):
        ut.settle(saddle, jnp.array([1.0, 0.0]))


MISTAKES = {
    "settle on a population": (lambda: ut.settle(population(), params()), r"population.sample\(key, count\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])


def test_the_last_newton_step_may_be_long_at_large_params(x64):
    """The step of 1e-4 after the flow is short relative to |params| = 1e4."""
    valley = ut.Problem(lambda w, _: 1e-2 * (w[0] - 1e4) ** 2 / 2, jnp.zeros(1))
    end = ut.settle(valley, jnp.array([1e4 + 1.0, 0.0]))
    np.testing.assert_allclose(end, [1e4, 0.0], atol=1e-6)
