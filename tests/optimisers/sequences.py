"""A thousand steps of an optimiser on gradients that were drawn before, in double precision."""

import jax
import jax.numpy as jnp
import numpy as np

START = np.random.default_rng(0).normal(size=12)
GRADIENTS = np.random.default_rng(1).normal(size=(1000, 12)) * np.geomspace(1e-3, 1e2, 12)
ETA = 0.01


def moved(optimiser, step_size=ETA):
    """Return the params after all gradients, and the state. `step_size` is a number, or one per step."""
    optimiser = optimiser.prepared()
    start = jnp.asarray(START)
    rates = optimiser.rates(jnp.arange(1000), jnp.broadcast_to(jnp.asarray(step_size, float), (1000,)))

    def one(carry, inputs):
        gradient, rate = inputs
        return optimiser.update(*carry, gradient, rate), None

    return jax.lax.scan(one, (start, optimiser.init(start)), (jnp.asarray(GRADIENTS), rates))[0]


def by_optax(transformation):
    """Return the params after all gradients by an optax transformation."""
    params = jnp.asarray(START)

    def one(carry, gradient):
        params, state = carry
        updates, state = transformation.update(gradient, state, params)
        return (params + updates, state), None

    return jax.lax.scan(one, (params, transformation.init(params)), jnp.asarray(GRADIENTS))[0][0]
