"""Explicit measurements: losses, gradients and memory."""

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from undertow import _chunks as chunks


def test_measurements_given_by_the_user(x64):
    """The gradient for X and y against the formula, for matrices, for rank-one vectors and with environments."""
    x = jax.random.normal(jax.random.key(0), (30, 4))
    full = jnp.einsum("ni,nj->nij", x, x)
    y = jax.random.normal(jax.random.key(1), (30,))
    for point in (jax.random.normal(jax.random.key(2), (4, 3)), {"U": jnp.eye(4), "V": 0.5 * jnp.ones((4, 2))}):
        shape = point["U"] @ point["U"].T - point["V"] @ point["V"].T if isinstance(point, dict) else point @ point.T
        g = jnp.einsum("n,nij->ij", jnp.einsum("nij,ij->n", full, shape) - y, full) / 30
        by_hand = {"U": g @ point["U"], "V": -g @ point["V"]} if isinstance(point, dict) else g @ point
        for measurements in (x, full):
            gradient = ut.sensing_problem(measurements, y).gradient(point)
            for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(by_hand), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-9)
    groups = np.arange(30) % 3
    noise = ut.Environments(ut.sensing_problem(full, y), groups)
    point = jnp.eye(4)
    inside = full[groups == 1]
    by_hand = jnp.einsum("n,nij->ij", jnp.einsum("nij,ij->n", inside, point @ point.T) - y[groups == 1], inside) / 10
    np.testing.assert_allclose(noise.environment_gradient(point, jnp.asarray(1)), by_hand @ point, atol=1e-9)


def test_the_memory_of_measurements_is_bounded(monkeypatch, x64):
    """Chunks of a few samples give the same gradient as all samples at once."""
    x = jax.random.normal(jax.random.key(0), (101, 3, 3))
    noise = ut.Environments(ut.sensing_problem(x, x[:, 0, 0]), np.arange(101) % 2)
    point = 0.5 * jnp.eye(3)
    unchunked = noise.problem.gradient(point), noise.environment_gradient(point, jnp.asarray(0))
    monkeypatch.setattr(chunks, "BUDGET_BYTES", 1500)
    assert noise.problem.chunk(point) < 20
    chunked = noise.problem.gradient(point), noise.environment_gradient(point, jnp.asarray(0))
    np.testing.assert_allclose(chunked, unchunked, atol=1e-12)
