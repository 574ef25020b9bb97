"""The short formulas for label noise: derivatives by finite differences, projections, and lost rank."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.manifold.losses import LOSSES
from undertow.covariance import LabelCovariance
from undertow.manifold.geometry import frame_at, jacobian
from undertow.manifold.label import label_amount, label_drift, label_return, trace_gradient

REGRESSIONS = ["linear model", "tanh network"]


@pytest.fixture(params=REGRESSIONS)
def point(request, x64):
    problem, params = LOSSES[request.param]()
    x, unravel = jax.flatten_util.ravel_pytree(params)
    return problem, x, unravel


def trace(problem, unravel):
    """Return tr H = |J|^2/n at zero residuals."""
    return lambda x: float(jnp.sum(jacobian(problem, unravel(x)) ** 2)) / problem.size


def test_the_gradient_of_the_trace_equals_central_differences(point):
    problem, x, unravel = point
    gradient = trace_gradient(problem, x, unravel, jacobian(problem, unravel(x)))
    direction = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    step, value = 1e-5, trace(problem, unravel)
    expected = (value(x + step * direction) - value(x - step * direction)) / (2 * step)
    np.testing.assert_allclose(jnp.vdot(gradient, direction), expected, rtol=1e-6)


def test_the_drift_is_tangent_and_equals_that_of_the_frame(point):
    problem, x, unravel = point
    frame = frame_at(problem, unravel(x))
    drift, distance = label_drift(problem, x, unravel, jnp.asarray(0.8))
    assert float(distance) < 1e-8
    rows = jacobian(problem, unravel(x))
    np.testing.assert_allclose(rows @ drift, 0, atol=1e-10 * float(jnp.linalg.norm(rows) * jnp.linalg.norm(drift)))
    expected = -0.2 * frame.project(trace_gradient(problem, x, unravel, rows))
    np.testing.assert_allclose(drift, expected, atol=1e-9 * float(jnp.linalg.norm(expected)))


def test_the_return_to_the_manifold_converges_quadratically(point):
    """Each Gauss-Newton step squares the residuals, up to a constant."""
    problem, x, unravel = point
    off = x + 1e-2 * jax.random.normal(jax.random.key(1), x.shape, x.dtype)
    size = lambda y: float(jnp.linalg.norm(problem.residuals(unravel(y))))
    first = label_return(problem, off, unravel)
    second = label_return(problem, first, unravel)
    assert size(first) < 0.1 * size(off)
    assert size(second) < max(20 * size(first) ** 2, 1e-12)


def test_the_distance_is_nan_for_dependent_rows(x64):
    """JJ' is singular for two equal equations."""
    twice = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.array([1.0, 1.0]), jnp.array([1.0, 1.0]))
    x = jnp.array([2.0, 0.5, 0.0])
    assert np.isnan(float(label_drift(twice, x, lambda v: v, jnp.asarray(1.0))[1]))


def test_label_amount_is_none_for_other_noises(x64):
    problem, params = LOSSES["linear model"]()
    amount = lambda noise: label_amount(noise.covariance(params), problem)
    assert amount(ut.LabelNoise(problem, 0.5)) is not None
    assert amount(ut.Isotropic(problem)) is None
    assert label_amount(ut.LabelNoise(problem, 0.5).covariance(params), LOSSES["metric"]()[0]) is None


class UnequalLabels(ut.AbstractNoise):
    """Label noise with one variance per sample; only its covariance is used here."""

    problem: ut.Regression
    squares: jax.Array

    def randomness(self, key, count, like=None):
        return jax.random.split(key, count)

    def gradient(self, params, slice):
        return self.problem.gradient(params)

    def covariance(self, params):
        weighted = self.problem.reweight(self.squares / jnp.sum(self.squares))
        return LabelCovariance(weighted, params, jnp.mean(self.squares))


def test_labels_of_unequal_strength_are_not_a_multiple_of_the_hessian(x64):
    """The limit is that of the same covariance given by a factor."""
    problem, params = LOSSES["tanh network"]()
    noise = UnequalLabels(problem, jnp.linspace(0.1, 3.0, problem.size))
    assert label_amount(noise.covariance(params), problem) is None
    same = ut.Additive(problem, lambda p: noise.covariance(p).factor())
    drift, expected = (jax.flatten_util.ravel_pytree(ut.Limit(n).drift(params))[0] for n in (noise, same))
    np.testing.assert_allclose(drift, expected, rtol=1e-6, atol=1e-9)
    equal = UnequalLabels(problem, jnp.ones(problem.size))
    constant = jax.flatten_util.ravel_pytree(ut.Limit(equal).drift(params))[0]
    assert float(jnp.max(jnp.abs(drift - constant))) > 1e-3
