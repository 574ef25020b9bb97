"""The function with one hidden unit: its minimiser, its symmetry, and the tails of its data."""

import jax
import jax.numpy as jnp
import numpy as np

from undertow import _trees as trees
from undertow.papers.optimisers.models.rank_one import BALANCE, log_ratio, rank_one


def test_the_start_is_a_balanced_minimiser_with_a_positive_loss(x64):
    for freedom in (0.0, 5.0):
        problem, start = rank_one(jax.random.key(1), freedom=freedom)
        flat, unravel = jax.flatten_util.ravel_pytree(start)
        hessian = np.linalg.eigvalsh(jax.hessian(lambda x, p=problem, back=unravel: p.loss(back(x)))(flat))
        assert float(jnp.linalg.norm(trees.ravel(problem.gradient(start)))) < 1e-12
        assert float(problem.loss(start)) > 0.1
        assert abs(hessian[0]) < 1e-12
        assert hessian[1] > 1e-2  # the orbit is the only flat direction
        np.testing.assert_allclose(log_ratio(start), 0, atol=1e-12)
        np.testing.assert_allclose(log_ratio(BALANCE.orbit(start, 0.3)), 0.6, rtol=1e-12)
        assert BALANCE.check(problem, start, 0).holds


def test_a_small_number_of_degrees_of_freedom_has_heavier_tails(x64):
    kurtosis = []
    for freedom in (0.0, 5.0):
        problem, start = rank_one(jax.random.key(0), samples=20_000, freedom=freedom)
        residual = problem.data[1] - (problem.data[0] @ start["W"])[:, None] * start["U"][None]
        np.testing.assert_allclose(jnp.std(residual), 0.5, rtol=0.03)
        kurtosis.append(float(jnp.mean(residual**4) / jnp.mean(residual**2) ** 2))
    assert abs(kurtosis[0] - 3) < 0.2
    assert kurtosis[1] > 5
