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


def test_values_that_do_not_affect_the_derivatives_have_no_kinks():
    """A maximum that is only subtracted and added again, as in a softmax, and a result that is not used."""

    def stopped(w, x):
        largest = jax.lax.stop_gradient(jnp.max(w))
        return (largest + jnp.log(jnp.sum(jnp.exp(w - largest)))) * x

    def unused(w, x):
        jnp.abs(w)
        return jnp.sum(w) * x

    for loss in (stopped, unused):
        assert kinks(ut.Problem(loss, jnp.ones(3)), jnp.ones(2)) == []
