"""Nets A and B of noise_equilibrium, Figure 7: two-layer tanh nets that do not change when all weights are scaled."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from undertow.problem import Problem

__all__ = ["LinearData", "net_a_loss", "net_b_loss", "start"]


def _norm(array: Array) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(array**2))


def net_a_loss(params: dict[str, Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
    """|u tanh(w x/|u|)/|w| - y|^2: invariant when u and w are scaled together, not one by one."""
    x, y = sample
    u, w = params["u"], params["w"]
    return jnp.sum((u @ jnp.tanh(w @ x / _norm(u)) / _norm(w) - y) ** 2)


def net_b_loss(params: dict[str, Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
    """|u tanh(w x/|w|)/|u| - y|^2: invariant when u or w is scaled."""
    x, y = sample
    u, w = params["u"], params["w"]
    return jnp.sum((u @ jnp.tanh(w @ x / _norm(w)) / _norm(u) - y) ** 2)


class LinearData(eqx.Module):
    """Samples of y = V x + eps with x and eps standard normal and V's entries N(0, 1/d).

    >>> import jax
    >>> from undertow.models.scale_invariant import LinearData, net_b_loss, start
    >>> problem = LinearData.draw(jax.random.key(0), d=4, samples=8).problem(net_b_loss)
    >>> params = start(jax.random.key(1), d=4, hidden=6, scale=0.5)
    >>> twice = {"u": 2 * params["u"], "w": params["w"]}
    >>> print(bool(abs(problem.loss(twice) - problem.loss(params)) < 1e-5))
    True
    """

    inputs: Float[Array, "samples d"]
    targets: Float[Array, "samples d"]

    @staticmethod
    def draw(key: Key[Array, ""], *, d: int, samples: int, dtype: Any = jnp.float32) -> "LinearData":
        """A draw of V and of the samples."""
        one, two, three = jax.random.split(key, 3)
        truth = jax.random.normal(one, (d, d), dtype) / jnp.sqrt(jnp.asarray(d, dtype))
        x = jax.random.normal(two, (samples, d), dtype)
        return LinearData(x, x @ truth.T + jax.random.normal(three, (samples, d), dtype))

    def problem(self, loss: Any) -> Problem:
        """One of the two nets on these samples."""
        return Problem(loss, (self.inputs, self.targets))


def start(key: Key[Array, ""], *, d: int, hidden: int, scale: float, dtype: Any = jnp.float32) -> dict[str, Array]:
    """All weights N(0, scale^2)."""
    out, into = jax.random.split(key)
    size = jnp.asarray(scale, dtype)
    return {
        "u": size * jax.random.normal(out, (d, hidden), dtype),
        "w": size * jax.random.normal(into, (hidden, d), dtype),
    }
