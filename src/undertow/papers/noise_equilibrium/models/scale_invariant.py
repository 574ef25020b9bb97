"""Networks A and B of noise_equilibrium, Figure 7: two-layer tanh networks invariant under scaling of all weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Key

from undertow.papers.noise_equilibrium.models.linear_nets import Loss
from undertow.problem import Problem

__all__ = ["LinearData", "NormalisedLoss", "start"]


def _norm(array: Array) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(array**2))


class NormalisedLoss(eqx.Module):
    """Network A: |u tanh(w x/|u|)/|w| - y|^2, invariant under a common scaling of u and w, not of each alone.

    Network B: |u tanh(w x/|w|)/|u| - y|^2, invariant under the scaling of u and of w.

    >>> import jax
    >>> from undertow.papers.noise_equilibrium.models.scale_invariant import LinearData, NormalisedLoss, start
    >>> data = LinearData.draw(jax.random.key(0), d=4, samples=8)
    >>> params = start(jax.random.key(1), d=4, hidden=6, square=10.0)
    >>> twice = {"u": 2 * params["u"], "w": params["w"]}
    >>> for net in "AB":
    ...     problem = data.problem(NormalisedLoss(net))
    ...     print(net, bool(abs(problem.loss(twice) - problem.loss(params)) < 1e-4))
    A False
    B True
    """

    layerwise: Bool[Array, ""]

    def __init__(self, net: str):
        if net not in ("A", "B"):
            raise ValueError(f"`NormalisedLoss({net!r})`: choose 'A' or 'B'.")
        self.layerwise = jnp.asarray(net == "B")

    def __call__(self, params: dict[str, Array], sample: tuple[Array, Array]) -> Float[Array, ""]:
        x, y = sample
        u, w = params["u"], params["w"]
        inside, outside = jnp.where(self.layerwise, _norm(w), _norm(u)), jnp.where(self.layerwise, _norm(u), _norm(w))
        return jnp.sum((u @ jnp.tanh(w @ x / inside) / outside - y) ** 2)


class LinearData(eqx.Module):
    """Samples of y = V x + eps; x and eps are standard normal and the entries of V are N(0, 1/d)."""

    inputs: Float[Array, "samples d"]
    targets: Float[Array, "samples d"]

    @staticmethod
    def draw(key: Key[Array, ""], *, d: int, samples: int, dtype: DTypeLike = jnp.float32) -> "LinearData":
        """Draw V and the samples."""
        one, two, three = jax.random.split(key, 3)
        truth = jax.random.normal(one, (d, d), dtype) / jnp.sqrt(jnp.asarray(d, dtype))
        x = jax.random.normal(two, (samples, d), dtype)
        return LinearData(x, x @ truth.T + jax.random.normal(three, (samples, d), dtype))

    def problem(self, loss: Loss) -> Problem:
        """Return the problem of `loss` on these samples."""
        return Problem(loss, (self.inputs, self.targets))


def start(
    key: Key[Array, ""], *, d: int, hidden: int, square: float, dtype: DTypeLike = jnp.float32
) -> dict[str, Array]:
    """Return Gaussian weights, scaled to |u|^2 + |w|^2 = square."""
    out, into = jax.random.split(key)
    u, w = jax.random.normal(out, (d, hidden), dtype), jax.random.normal(into, (hidden, d), dtype)
    factor = jnp.sqrt(jnp.asarray(square, dtype) / (jnp.sum(u**2) + jnp.sum(w**2)))
    return {"u": factor * u, "w": factor * w}
