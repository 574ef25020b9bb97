"""Tr H, the largest stable step and the spectrum against dense Hessians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry import curvature
from undertow.symmetry.curvature import measure_curvature, trace_of_hessian


def relu_problem():
    """Return a network in double precision, its params and its dense Hessian."""
    double = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)
    problem, params = ut.Problem(nets.relu_net, double(nets.data())), double(nets.relu_params())
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    return problem, params, np.asarray(jax.hessian(lambda x: problem.loss(unravel(x)))(flat))


def test_a_small_model_has_the_spectrum_of_its_dense_hessian(x64):
    problem, params, dense = relu_problem()
    found = measure_curvature(problem, params, 0)
    exact = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(found.spectrum.eigenvalues, exact, rtol=1e-8, atol=1e-8 * exact[0])
    assert found.spectrum.exact
    assert set(found.spectrum.counts) == {1.0}
    assert float(found.sharpness.value) == pytest.approx(np.trace(dense), rel=1e-9)
    assert float(found.sharpness.standard_error) == 0
    assert found.largest_step == pytest.approx(2 / exact[0], rel=1e-9)


def test_a_larger_model_has_the_spectrum_of_lanczos_iterations(x64, monkeypatch):
    """The extreme eigenvalue is exact, the counts add up to the dimension, and their moments estimate those of H."""
    problem, params, dense = relu_problem()
    exact = measure_curvature(problem, params, 0)
    size = len(dense)
    monkeypatch.setattr(curvature, "DENSE", size - 1)
    monkeypatch.setattr(curvature, "STEPS", 25)
    monkeypatch.setattr(curvature, "PROBES", 40)
    found = measure_curvature(problem, params, 0)
    assert not found.spectrum.exact
    assert found.largest_step == pytest.approx(exact.largest_step, rel=1e-6)
    values, counts = np.array(found.spectrum.eigenvalues), np.array(found.spectrum.counts)
    assert np.all(np.diff(values) <= 0)
    assert counts.sum() == pytest.approx(size, rel=1e-9)
    # x'Hx of a random direction x has the variance 2/(n + 2) times that of the eigenvalues of H
    eigenvalues = np.linalg.eigvalsh(dense)
    spread = size * np.sqrt(2 / (size + 2) * eigenvalues.var() / 40)
    assert abs((values * counts).sum() - np.trace(dense)) < 4 * spread
    assert abs(float(found.sharpness.value) - np.trace(dense)) < 5 * float(found.sharpness.standard_error)


def test_the_trace_by_random_signs(x64):
    problem, params, dense = relu_problem()
    estimate = trace_of_hessian(problem, params, jax.random.key(0), probes=200)
    assert abs(float(estimate.value) - np.trace(dense)) < 5 * float(estimate.standard_error)


def test_a_hessian_of_rank_one(monkeypatch):
    problem = ut.Problem(lambda p, s: jnp.sum(p) ** 2, jnp.ones(3))
    np.testing.assert_allclose(measure_curvature(problem, jnp.ones(10), 0).largest_step, 0.1, rtol=1e-5)
    monkeypatch.setattr(curvature, "DENSE", 5)
    monkeypatch.setattr(curvature, "STEPS", 10)
    np.testing.assert_allclose(measure_curvature(problem, jnp.ones(10), 0).largest_step, 0.1, rtol=1e-4)
