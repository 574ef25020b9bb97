"""Kinks in the jaxpr of a loss."""

import jax
import jax.numpy as jnp

import undertow as ut
from undertow.manifold.smoothness import kinks


def test_kinks_are_those_of_floats():
    """max of whole numbers has no derivative to lose."""
    floats = ut.Problem(lambda w, x: jnp.abs(w) * x, jnp.ones(3))
    assert kinks(floats, jnp.array(1.0)) == ["abs"]
    whole = ut.Problem(lambda w, k: w ** jax.lax.max(k, 2), jnp.arange(3))
    assert kinks(whole, jnp.array(1.0)) == []
