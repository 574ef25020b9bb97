"""The end of gradient flow, where it is known."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import params, population
from tests.mistakes import assert_explained
from undertow.dynamics.settle import LONGEST_JUMP, _normal_step
from undertow.dynamics.stiff_flow import stiff_end


def test_circle_keeps_the_angle(x64):
    circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    for start in ([0.9, 1.2], [-0.3, 0.1], [2.0, 0.0]):
        start = jnp.array(start)
        end = ut.settle(circle, start).params
        np.testing.assert_allclose(end, start / jnp.linalg.norm(start), atol=1e-8)


def test_invariants_of_a_factorisation(x64):
    """Gradient flow of (u v - 1)^2/2 conserves u^2 - v^2 and ends at u v = 1."""
    task = ut.Problem(lambda p, _: (p["u"] * p["v"] - 1) ** 2 / 2, jnp.zeros(1))
    end = ut.settle(task, {"u": jnp.array(0.5), "v": jnp.array(0.2)}).params
    np.testing.assert_allclose(end["u"] * end["v"], 1.0, atol=1e-8)
    np.testing.assert_allclose(end["u"] ** 2 - end["v"] ** 2, 0.21, rtol=1e-7)


def test_a_flow_without_an_end_is_an_error():
    slope = ut.Problem(lambda x, _: x, jnp.zeros(1))
    with pytest.raises(ValueError, match="did not reach"):
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
    with pytest.raises(ValueError, match="ends at a saddle"):
        ut.settle(saddle, jnp.array([1.0, 0.0]))


MISTAKES = {
    "settle on a population": (lambda: ut.settle(population(), params()).params, r"population.sample\(key, count\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])


def test_the_last_newton_step_may_be_long_at_large_params(x64):
    """The step of 1e-4 after the flow is short relative to |params| = 1e4."""
    valley = ut.Problem(lambda w, _: 1e-2 * (w[0] - 1e4) ** 2 / 2, jnp.zeros(1))
    end = ut.settle(valley, jnp.array([1e4 + 1.0, 0.0])).params
    np.testing.assert_allclose(end, [1e4, 0.0], atol=1e-6)


def test_inside_jit_a_flow_without_an_end_raises_at_run_time():
    slope = ut.Problem(lambda x, _: x, jnp.zeros(1))
    with pytest.raises(Exception, match="did not reach"):
        jax.jit(lambda x: ut.settle(slope, x, max_steps=50).params)(jnp.array(0.0))


def canonical_toy():
    """A tanh layer of width 40 on 30 points of sin(2x): the eigenvalues of its kernel fall to 1e-15."""
    x = jnp.linspace(-2, 2, 30)
    keys = jax.random.split(jax.random.key(0), 3)
    task = ut.Regression(lambda p, z: jnp.dot(p["o"], jnp.tanh(p["a"] * z + p["b"])), x, jnp.sin(2 * x))
    start = {
        "a": 1.5 * jax.random.normal(keys[0], (40,)),
        "b": jax.random.normal(keys[1], (40,)),
        "o": jax.random.normal(keys[2], (40,)) / 40**0.5,
    }
    return task, start


def test_an_ill_conditioned_flow_ends_with_what_it_did_not_resolve(x64):
    task, start = canonical_toy()
    with pytest.warns(UserWarning, match=r"ill-conditioned.*not\s+arrived along directions of curvature"):
        end = ut.settle(task, start, tolerance=1e-7)
    assert not end.resolved
    assert float(end.gradient_norm) <= 1e-7
    np.testing.assert_allclose(end.loss, task.loss(end.params), rtol=1e-12)
    # the largest curvature along which a Newton step would still be long, from a dense decomposition by NumPy
    flat, unravel = jax.flatten_util.ravel_pytree(end.params)
    rows = np.asarray(jax.jacobian(lambda x: task.predictions(unravel(x)))(flat))
    _, singular, right = np.linalg.svd(rows, full_matrices=False)
    gradient = np.asarray(jax.flatten_util.ravel_pytree(task.gradient(end.params))[0])
    steps = np.abs(right @ gradient) / (singular**2 / 30)
    far = steps > LONGEST_JUMP * (1 + np.linalg.norm(flat)) / 30**0.5
    np.testing.assert_allclose(end.resolution, (singular**2 / 30)[far].max(), rtol=1e-3)
    assert "not resolved" in str(end)


def test_the_stiff_flow_ends_where_the_explicit_one_does(x64):
    """A problem of moderate conditioning, on which both methods arrive: the same end, to the error per step."""
    key = jax.random.split(jax.random.key(1), 3)
    x = jax.random.normal(key[0], (5, 3))
    task = ut.Regression(lambda p, z: jnp.dot(p["o"], jnp.tanh(p["w"] @ z)), x, jnp.sin(x[:, 0]))
    start = {"w": jax.random.normal(key[1], (8, 3)), "o": jax.random.normal(key[2], (8,))}
    explicit = ut.settle(task, start, tolerance=1e-10)
    assert explicit.resolved
    stiff = stiff_end(task, start, jnp.asarray(1e-10), LONGEST_JUMP / 100, 20_000)
    assert float(stiff.resolution) == 0
    for mine, theirs in zip(jax.tree.leaves(stiff.params), jax.tree.leaves(explicit.params), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
