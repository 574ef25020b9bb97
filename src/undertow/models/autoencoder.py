"""Two-layer autoencoders U act(W x) with one of five activations (noise_equilibrium, Figures 6 and 9)."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from undertow.models.linear_nets import GaussianPairs, cosine

__all__ = ["ACTIVATIONS", "autoencoder_loss", "latent_cosine"]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda h: h,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "leaky": jax.nn.leaky_relu,
    "swish": jax.nn.swish,
}


@functools.cache
def autoencoder_loss(activation: str) -> Callable[[dict[str, Array], tuple[Array, Array]], Array]:
    """The loss |U act(W x) - y|^2, the same function for the same activation.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.models.autoencoder import autoencoder_loss
    >>> from undertow.models.linear_nets import GaussianPairs, fan_in, loud_first
    >>> law = GaussianPairs(jnp.ones(4), loud_first(4))
    >>> population = law.population(autoencoder_loss("tanh"))
    >>> print(population.loss(fan_in(jax.random.key(0), inputs=4, hidden=4)).value > 4)
    True
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"`autoencoder_loss({activation!r})`: choose one of {', '.join(ACTIVATIONS)}.")
    act = ACTIVATIONS[activation]

    def loss(params: dict[str, Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
        x, y = sample
        return jnp.sum((params["U"] @ act(params["W"] @ x) - y) ** 2)

    return loss


def latent_cosine(params: dict[str, Array], law: GaussianPairs) -> Float[Array, ""]:
    """The cosine between W Sigma_x W' and U'Sigma_eps U; the traces that normalise the Sigmas cancel."""
    u, w = params["U"], params["W"]
    return cosine((w * law.input_variance[None]) @ w.T, (u.T * law.noise_variance[None]) @ u)
