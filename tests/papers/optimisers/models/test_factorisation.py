"""The noisy factorisation: a minimiser with a positive loss, balanced factors, and a charge that gradients conserve.

Matrix sensing: the factors of the true matrix fit its measurements, and the observables are those of the Hessian there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.papers.optimisers.models.factorisation import (
    Recovery,
    charge,
    matrix_sensing,
    noisy_factorisation,
    random_factors,
)


def test_the_start_is_a_balanced_minimiser_with_a_positive_loss(x64):
    problem, start = noisy_factorisation(jax.random.key(1))
    flat, unravel = jax.flatten_util.ravel_pytree(start)
    hessian = np.linalg.eigvalsh(jax.hessian(lambda x: problem.loss(unravel(x)))(flat))
    assert float(jnp.linalg.norm(jax.flatten_util.ravel_pytree(problem.gradient(start))[0])) < 1e-12
    assert float(problem.loss(start)) > 0.1
    assert np.sum(np.abs(hessian) < 1e-10) == 4  # the group GL(2) moves the factors and keeps their product
    assert hessian.min() > -1e-10
    np.testing.assert_allclose(start["U"].T @ start["U"], start["W"] @ start["W"].T, atol=1e-12)


def test_the_gradient_of_the_loss_conserves_the_charge(x64):
    problem, start = noisy_factorisation(jax.random.key(1))
    moved = jax.tree.map(lambda x: x + 0.1 * jnp.arange(x.size).reshape(x.shape), start)
    _, rate = jax.jvp(charge, (moved,), (problem.gradient(moved),))
    assert abs(float(rate)) < 1e-12
    assert float(jnp.linalg.norm(jax.flatten_util.ravel_pytree(problem.gradient(moved))[0])) > 0.1


def test_factors_of_the_true_matrix_fit_and_have_the_traces_of_the_hessian(x64):
    """At zero loss the Hessian is the Gauss-Newton matrix."""
    problem, truth = matrix_sensing(jax.random.key(1), size=3, measurements=7)
    left, sizes, right = np.linalg.svd(truth)
    assert sizes == pytest.approx([3.0, 0.0, 0.0], abs=1e-12)
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]  # U V' does not depend on it
    root = np.diag(np.sqrt(sizes))
    params = {"U": jnp.asarray(left @ root @ turned), "V": jnp.asarray(right.T @ root @ turned)}
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    diagonal = np.diag(jax.hessian(lambda x: problem.loss(unravel(x)))(flat))
    recovery = Recovery(problem, truth)(params)
    assert float(problem.loss(params)) < 1e-20
    assert float(recovery["error"]) < 1e-12
    assert float(recovery["trace"]) == pytest.approx(diagonal.sum())
    assert float(recovery["root_trace"]) == pytest.approx(np.sqrt(diagonal).sum())


def test_the_error_of_vanishing_factors_is_that_of_the_zero_matrix(x64):
    problem, truth = matrix_sensing(jax.random.key(1), size=3, measurements=7)
    params = jax.tree.map(lambda x: 0 * x, random_factors(3)(jax.random.key(0)))
    assert float(Recovery(problem, truth)(params)["error"]) == pytest.approx(1.0)


def test_random_factors_have_the_deviation_one_half(x64):
    factors = random_factors(60)(jax.random.key(0))
    entries = np.concatenate([np.ravel(factor) for factor in factors.values()])
    assert entries.std() == pytest.approx(0.5, abs=4 * 0.5 / (2 * entries.size) ** 0.5)
    assert abs(np.corrcoef(np.ravel(factors["U"]), np.ravel(factors["V"]))[0, 1]) < 4 / 60
