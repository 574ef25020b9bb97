"""The experiment and the boundary of the phase diagram of sparse recovery."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.papers.zero_loss import phase_diagram as recovery
from undertow.papers.zero_loss.models.linear import LinearModel, predict


def test_masked_equations_do_not_change_a_recovery(x64):
    key = jax.random.key(3)
    inputs, signs = jax.random.split(key)
    d, most = 30, 20
    padded = jax.jit(partial(recovery.run, d=d, most=most))
    for n, sparsity in ((10, 3), (20, 2)):
        z = jax.random.normal(inputs, (most, d))[:n]
        truth = jnp.where(jnp.arange(d) < sparsity, jax.random.rademacher(signs, (d,), dtype=z.dtype), 0)
        model = LinearModel(ut.Regression(predict, z, z @ truth), truth)
        end = model.settle(model.decayed(model.start(1.0), 8.0, 1.0))
        alone = model.error(end) ** 2 / jnp.sum(truth**2)
        result = padded(key, n=float(n), sparsity=float(sparsity))
        np.testing.assert_allclose(result["error"], alone, rtol=1e-5)


def test_the_statistical_dimension_is_that_of_the_cone():
    """d - E|projection of g on the polar cone|^2 = E min_t |g - t subdifferential|^2, sampled."""
    d, k = 60, 6
    rng = np.random.default_rng(0)
    g = rng.normal(size=(4000, d))
    t = np.linspace(0, 4, 401)[:, None]
    distances = []
    for row in g:
        on = ((row[None, :k] - t) ** 2).sum(1)
        off = (np.maximum(np.abs(row[None, k:]) - t, 0) ** 2).sum(1)
        distances.append((on + off).min())
    mean, error = np.mean(distances), np.std(distances) / math.sqrt(len(distances))
    formula = recovery.statistical_dimension(k, d)
    # the formula is an upper bound, and less than 2 sqrt(d/k) above it (Amelunxen et al., Theorem 4.3)
    assert mean - 4 * error < formula < mean + 2 * math.sqrt(d / k) + 4 * error
    assert recovery.statistical_dimension(d, d) == pytest.approx(d)
