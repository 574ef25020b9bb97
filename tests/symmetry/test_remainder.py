"""Generators beyond the known families."""

import jax
import jax.numpy as jnp

import undertow as ut


def total(symmetries, params):
    return sum(symmetry.dimension(params) for symmetry in symmetries)


def normal(k, *shape):
    return jax.random.normal(jax.random.key(k), shape, jnp.float64)


def drawn(samples=40, inputs=6):
    return jax.random.normal(jax.random.key(5), (samples, inputs), jnp.float64)


def test_symmetries_of_a_loss_of_a_subspace_with_an_unused_matrix(x64):
    """U -> U exp(A) keeps the range of U: two columns have three symmetric A and no further scaling."""

    def loss(p, x):
        q = jnp.linalg.qr(p["U"])[0]
        return jnp.sum((x - q @ (q.T @ x)) ** 2)

    params = {"U": normal(0, 4, 2), "W": normal(1, 2, 3)}
    assert total(ut.find_symmetries(ut.Problem(loss, drawn(inputs=4)), params), params) == 3
