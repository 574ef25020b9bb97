"""Alternatives of the claims of `zero_loss`."""

import jax
import jax.numpy as jnp

from plants import Plant, replaced

PLANTS: dict[str, Plant] = {
    "label-noise-covariance": replaced(
        "undertow.noise.label.sampling.factor_of_size", lambda right: lambda *args: 0.0 * right(*args)
    ),
    "isotropic-covariance": replaced(
        "undertow.noise.isotropic.ScaledIdentity", lambda right: lambda amount, params: right(jnp.sqrt(amount), params)
    ),
    "additive-covariance": replaced(
        "undertow.covariance.Factored.mv",
        lambda right: lambda sigma, v: jax.tree.map(lambda b, x: jnp.sum(b**2, axis=-1) * x, sigma.columns, v),
    ),
}
