"""Linear networks: losses, Hessians, noise moments, starts and the distributions of their data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import undertow as ut
from undertow import _trees as trees
from undertow.noise.additive import noiseless
from undertow.papers.noise_equilibrium.models.linear_nets import (
    GaussianPairs,
    balance,
    condensed,
    deep_loss,
    deep_start,
    fan_in,
    hessian_trace,
    kaiming,
    loud_first,
    rank_one_loss,
    split_variance,
    squared_norms,
    two_layer_loss,
    xavier,
)

N, HIDDEN = 4, 3
DTYPE = jnp.float64


@pytest.fixture
def law(x64):
    return GaussianPairs(split_variance(N, 0.4, DTYPE), loud_first(N, dtype=DTYPE))


@pytest.fixture
def params(x64):
    return fan_in(jax.random.key(1), inputs=N, hidden=HIDDEN, dtype=DTYPE)


def test_losses_equal_the_formulas(law, params):
    sample = law(jax.random.key(2))
    (x, y), u, w = (np.asarray(v) for v in sample), np.asarray(params["U"]), np.asarray(params["W"])
    np.testing.assert_allclose(two_layer_loss(params, sample), np.sum((u @ w @ x - y) ** 2), rtol=1e-12)
    np.testing.assert_allclose(deep_loss((params["W"], params["U"]), sample), np.sum((u @ w @ x - y) ** 2), rtol=1e-12)
    first = {"u": params["U"][0], "w": params["W"][:, 0]}
    number = rank_one_loss(first, (sample[0][0], sample[1][0]))
    np.testing.assert_allclose(number, (u[0] @ w[:, 0] * x[0] - y[0]) ** 2, rtol=1e-12)


def test_the_trace_of_the_hessian_equals_the_formula(law, params):
    """Proposition 5.3 with its factor 2, against the Hessian of the expected loss by automatic differentiation."""
    problem = law.mean_problem(two_layer_loss)
    flat, back = ravel_pytree(params)
    exact = jnp.trace(jax.hessian(lambda v: problem.loss(back(v)))(flat))
    np.testing.assert_allclose(hessian_trace(params, law.input_variance), exact, rtol=1e-10)


def test_the_data_have_the_stated_second_moments(law):
    count = 20_000
    x, y = law.population(two_layer_loss).sample(jax.random.key(3), count).data
    for values, expected in ((x, law.input_variance), (y - x, law.noise_variance)):
        moment = np.asarray(values.T @ values / count)
        # Var of x_i x_j is v_i v_j off the diagonal, 2 v_i^2 on it
        error = np.sqrt(np.outer(expected, expected) * (1 + np.eye(N)) / count)
        assert np.all(np.abs(moment - np.diag(expected)) < 5 * error)
    cross = np.asarray(x.T @ (y - x) / count)
    assert np.all(np.abs(cross) < 5 * np.sqrt(np.outer(law.input_variance, law.noise_variance) / count))


def test_gammas_are_the_moments_of_residuals_and_inputs(law, params):
    problem = law.population(two_layer_loss).sample(jax.random.key(4), 100_000)
    a, b = balance(params, problem)
    u, w = params["U"], params["W"]
    of_inputs, of_residuals = law.gammas(u @ w)
    for sampled, exact in ((a, w @ of_inputs @ w.T), (b, u.T @ of_residuals @ u)):
        assert jnp.linalg.norm(sampled - exact) < 0.04 * jnp.linalg.norm(exact)
    noise = ut.Minibatch(problem, 1)
    symmetry = ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"])
    second = noise.problem.quadratic(params, lambda g: symmetry.pair(g, g))
    np.testing.assert_allclose(second[0], 4 * a, rtol=1e-8)  # E[G_U'G_U] = 4 W Gamma_W W'
    np.testing.assert_allclose(second[1], 4 * b, rtol=1e-8)


def test_fewer_samples_have_the_same_gradient(law, params):
    problem = law.population(two_layer_loss).sample(jax.random.key(5), 50)
    reduced = condensed(problem)
    assert reduced.size == 2 * N
    for full, short in zip(*(jax.tree.leaves(p.gradient(params)) for p in (problem, reduced)), strict=True):
        np.testing.assert_allclose(short, full, atol=1e-10)
    drawn = noiseless(reduced).draw(jax.random.key(6), params)
    np.testing.assert_allclose(trees.ravel(drawn), trees.ravel(reduced.gradient(params)), atol=1e-12)


def test_starts_have_the_stated_distribution(x64):
    n, hidden = 20, 100
    key = jax.random.key(7)
    for make, out, into in ((kaiming, 1, 1 / n), (fan_in, 1 / hidden, 1 / n), (xavier, 2 / 120, 2 / 120)):
        params = make(key, inputs=n, hidden=hidden, dtype=DTYPE)
        for leaf, variance in ((params["U"], out), (params["W"], into)):
            assert abs(jnp.mean(leaf**2) / variance - 1) < 5 * np.sqrt(2 / leaf.size)
    layers = deep_start(key, (8, 5, 5), 0.3, DTYPE)
    assert [w.shape for w in layers] == [(5, 8), (5, 5)]
    # parts of orthogonal matrices, times factors whose product is 1
    np.testing.assert_allclose(jnp.prod(squared_norms(layers)), 5.0**2, rtol=1e-10)
    for layer in layers:
        np.testing.assert_allclose(layer @ layer.T, squared_norms([layer])[0] / 5 * jnp.eye(5), atol=1e-12)


def test_a_variance_can_be_traced():
    np.testing.assert_array_equal(jax.jit(lambda v: loud_first(3, v))(5.0), [5.0, 1.0, 1.0])
