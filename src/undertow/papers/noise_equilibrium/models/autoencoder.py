"""Two-layer autoencoders U act(W x) with one of five activations (noise_equilibrium, Figures 6 and 9)."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, cosine

__all__ = ["ACTIVATIONS", "AutoencoderLoss", "latent_cosine"]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda h: h,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "leaky": jax.nn.leaky_relu,
    "swish": jax.nn.swish,
}


class AutoencoderLoss(eqx.Module):
    """The loss |U act(W x) - y|^2. The activation is stored as an index, so that all five share one compiled program.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.papers.noise_equilibrium.models.autoencoder import AutoencoderLoss
    >>> from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, fan_in, loud_first
    >>> law = GaussianPairs(jnp.ones(4), loud_first(4))
    >>> population = law.population(AutoencoderLoss("tanh"))
    >>> print(population.estimate_loss(fan_in(jax.random.key(0), inputs=4, hidden=4)).value > 4)
    True
    """

    index: Int[Array, ""]

    def __init__(self, activation: str):
        if activation not in ACTIVATIONS:
            raise ValueError(f"`AutoencoderLoss({activation!r})`: choose one of {', '.join(ACTIVATIONS)}.")
        self.index = jnp.asarray(list(ACTIVATIONS).index(activation), jnp.int32)

    def __call__(self, params: dict[str, Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
        x, y = sample
        hidden = jax.lax.switch(self.index, list(ACTIVATIONS.values()), params["W"] @ x)
        return jnp.sum((params["U"] @ hidden - y) ** 2)


def latent_cosine(params: dict[str, Array], law: GaussianPairs) -> Float[Array, ""]:
    """Return the cosine between W Sigma_x W' and U'Sigma_eps U. The normalising traces cancel."""
    u, w = params["U"], params["W"]
    return cosine((w * law.input_variance[None]) @ w.T, (u.T * law.noise_variance[None]) @ u)
