"""The regressions: data, starts at zero loss, and the trace of the Gauss-Newton matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.papers.optimisers.models.networks import (
    HessianTrace,
    linear,
    product,
    sine_net,
    small_tanh_net,
    squares,
)

SMALL = {"product": product, "squares": squares, "tanh": small_tanh_net}


@pytest.mark.parametrize("name", SMALL)
def test_the_small_models_start_at_zero_loss_where_the_trace_is_that_of_the_hessian(name, x64):
    problem, start = SMALL[name]()
    hessian = jax.hessian(problem.loss)(start)
    assert float(problem.loss(start)) < 1e-28
    np.testing.assert_allclose(HessianTrace(problem)(start), np.trace(hessian), rtol=1e-12)
    assert np.linalg.matrix_rank(hessian, tol=1e-8) == problem.size < start.size  # a manifold of minimisers


def test_the_sine_network_is_the_stated_model(x64):
    problem, start = sine_net(jax.random.key(3))
    inner, bias, outer = (np.asarray(start[name]) for name in ("inner", "bias", "outer"))
    x = np.linspace(-2, 2, 30)
    predicted = np.tanh(np.outer(x, inner) + bias[None]) @ outer
    np.testing.assert_allclose(problem.loss(start), np.mean((predicted - np.sin(2 * x)) ** 2) / 2, rtol=1e-12)


def test_the_start_of_the_sine_network_has_the_stated_deviations(x64):
    _, start = sine_net(jax.random.key(4), width=4000)
    for name, deviation in (("inner", 1.5), ("bias", 1.0), ("outer", 4000**-0.5)):
        assert abs(np.std(start[name]) / deviation - 1) < 5 / np.sqrt(2 * 4000)


def test_the_sine_network_has_no_sharp_rank(x64):
    """Its eigenvalues fall by more than ten orders of magnitude without a gap of more than three."""
    problem, start = sine_net(jax.random.key(0))
    rows = jax.vmap(lambda x: jax.flatten_util.ravel_pytree(jax.grad(problem.predict)(start, x))[0])(problem.inputs)
    values = np.linalg.svd(np.asarray(rows), compute_uv=False) ** 2
    values = values[values > values[0] * 1e-10]
    assert np.max(values[:-1] / values[1:]) < 1e3


def test_the_linear_regression_does_not_fit_at_its_minimiser(x64):
    problem, minimiser = linear(jax.random.key(0))
    assert float(problem.loss(minimiser)) > 0.01
    assert float(jnp.linalg.norm(problem.gradient(minimiser))) < 1e-12
