"""Gradients at random points around params."""

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from undertow.symmetry.evidence import gather_evidence


def normal(k, *shape):
    return jax.random.normal(jax.random.key(k), shape, jnp.float64)


def drawn(samples=40, inputs=6):
    return jax.random.normal(jax.random.key(5), (samples, inputs), jnp.float64)


def test_the_distance_of_the_points_is_half_the_size_of_the_params(x64):
    params = {"large": -100 - normal(0, 5, 4), "small": 1e-3 * normal(1, 3), "zero": jnp.zeros(2)}
    loss = lambda p, x: sum(jnp.sum(leaf) for leaf in p.values()) * x[0]
    evidence = gather_evidence(ut.Problem(loss, drawn()), params, jax.random.key(0), 2000)
    for leaf, at in zip(params.values(), evidence.params, strict=True):
        leaf = np.asarray(leaf)
        spread = np.sqrt(np.mean((at - leaf) ** 2))
        np.testing.assert_allclose(spread, 0.5 * np.sqrt(np.mean(leaf**2)) if leaf.any() else 0.25, rtol=0.1)
