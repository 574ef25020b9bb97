"""Kinks in the jaxpr of a loss."""

import jax
import jax.numpy as jnp

import undertow as ut
from undertow.manifold.smoothness import kinks


def test_integer_operations_have_no_kinks():
    """The maximum of integers is not differentiated."""
    floats = ut.Problem(lambda w, x: jnp.abs(w) * x, jnp.ones(3))
    assert kinks(floats, jnp.array(1.0)) == ["abs"]
    problem = ut.Problem(lambda w, k: w ** jax.lax.max(k, 2), jnp.arange(3))
    assert kinks(problem, jnp.array(1.0)) == []
