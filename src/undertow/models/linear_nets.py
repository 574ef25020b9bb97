"""Linear networks on Gaussian data (noise_equilibrium, section 5): |UWx - y|^2, deep ones, and a factored number.

The loss is |.|^2 without 1/2. Two layers are {"U": (outputs, hidden), "W": (hidden, inputs)}, deep nets (W_1, ..., W_D).
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from undertow import trees, validate
from undertow.problem import Population, Problem

__all__ = ["GaussianPairs", "split_variance", "two_layer_loss", "deep_loss"]

Pair = dict[str, Array]


def two_layer_loss(params: Pair, sample: tuple[Array, Array]) -> Float[Array, ""]:
    """|UWx - y|^2."""
    x, y = sample
    return jnp.sum((params["U"] @ (params["W"] @ x) - y) ** 2)


def deep_loss(params: Sequence[Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
    """|W_D ... W_1 x - y|^2."""
    x, y = sample
    return jnp.sum((functools.reduce(lambda h, w: w @ h, params, x) - y) ** 2)


class GaussianPairs(eqx.Module):
    """A law of data: x ~ N(0, diag(input_variance)), y = x + eps, eps ~ N(0, diag(noise_variance)), independent.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.models.linear_nets import GaussianPairs, split_variance, two_layer_loss, two_layer_start
    >>> law = GaussianPairs(split_variance(4, 0.2), jnp.ones(4))
    >>> print(law.input_variance.round(2), law.population(two_layer_loss).sample(jax.random.key(0), 8).size)
    [0.2 0.2 1.8 1.8] 8
    """

    input_variance: Float[Array, " d"]
    noise_variance: Float[Array, " d"]

    def __call__(self, key: Key[Array, ""]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """One (x, y)."""
        x, noise = jax.random.normal(key, (2, *self.input_variance.shape), self.input_variance.dtype)
        x = jnp.sqrt(self.input_variance) * x
        return x, x + jnp.sqrt(self.noise_variance) * noise

    def population(self, loss: Callable[[PyTree, PyTree], Array]) -> Population:
        """A loss with fresh data at every step."""
        return Population(loss, self)

    def gammas(self, product: Float[Array, "d d"]) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
        """Gamma_W = E[|r|^2 xx'] and Gamma_U = E[|x|^2 rr'] for r = product x - y, by the Gaussian's fourth moments."""
        inputs, noise = jnp.diag(self.input_variance), jnp.diag(self.noise_variance)
        away = product - jnp.eye(product.shape[0], dtype=product.dtype)
        miss = away @ inputs @ away.T
        across = (jnp.trace(miss) + jnp.trace(noise)) * inputs + 2 * inputs @ away.T @ away @ inputs
        return across, jnp.trace(inputs) * (miss + noise) + 2 * away @ inputs @ inputs @ away.T

    def mean_problem(self) -> Problem:
        """A finite problem with the loss of two-layer or deep nets on this law, exactly, up to a constant."""
        root = jnp.diag(jnp.sqrt(self.input_variance * self.input_variance.size))
        return Problem(two_layer_loss, (root, root))


def split_variance(d: int, phi: float, dtype: Any = jnp.float32) -> Float[Array, " d"]:
    """phi for the first half of the coordinates, 2 - phi for the others (Figure 8)."""
    d = validate.positive_integer("split_variance", "d", d)
    return jnp.where(jnp.arange(d) < d // 2, phi, 2 - phi).astype(dtype)
