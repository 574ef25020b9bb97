"""Tests of the first two moments of random vectors, along fixed directions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from undertow import _trees as trees
from undertow.covariance import AbstractCovariance

DRAWS = 20_000
PROBES = 12
LEVEL = 1e-5  # of a false alarm in one test, over all its statistics


def probes(like) -> np.ndarray:
    """Fixed random directions, with the coordinate axes among them."""
    axes = np.eye(trees.count(like))[:4]
    return np.concatenate([axes, np.random.default_rng(5).normal(size=(PROBES, trees.count(like)))])


def largest_z(draws: np.ndarray, mean: np.ndarray, covariance_times, directions: np.ndarray) -> tuple[float, float]:
    """|z| of the first two moments along the directions: of the mean, and of the variance."""
    along = (draws - mean) @ directions.T
    z_mean = along.mean(0) / (along.std(0) / np.sqrt(len(draws)) + 1e-12)
    predicted = np.array([d @ covariance_times(d) for d in directions])
    squares = along**2
    z_variance = (squares.mean(0) - predicted) / (squares.std(0) / np.sqrt(len(draws)) + 1e-12)
    return np.abs(z_mean).max(), np.abs(z_variance).max()


def threshold(statistics: int) -> float:
    return norm.isf(LEVEL / (2 * statistics))


def flat_operator(sigma: AbstractCovariance, like):
    _, unravel = jax.flatten_util.ravel_pytree(like)
    product = eqx.filter_jit(lambda v: trees.ravel(sigma.mv(unravel(v))))
    return lambda v: np.asarray(product(jnp.asarray(v, jax.tree.leaves(like)[0].dtype)))
