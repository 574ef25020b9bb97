"""The noisy factorisation: a minimiser with a positive loss, balanced factors, and a charge that gradients conserve."""

import jax
import jax.numpy as jnp
import numpy as np

from undertow.papers.optimisers.models.factorisation import charge, noisy_factorisation


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
