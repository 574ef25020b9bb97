"""A two-layer tanh network for regression on random data: a small, smooth, generic model."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from undertow.problem import Regression

__all__ = ["TanhNet", "predict"]


def predict(params: PyTree, x: Float[Array, " inputs"]) -> Float[Array, ""]:
    """Return outer . tanh(inner x)."""
    return params["outer"] @ jnp.tanh(params["inner"] @ x)


class TanhNet(eqx.Module):
    """A regression problem with n random samples, and random initial parameters.

    >>> import jax
    >>> from undertow.papers.zero_loss.models.tanh_net import TanhNet
    >>> net = TanhNet.draw(jax.random.key(0), inputs=4, hidden=5, n=8)
    >>> print(net.problem.size, net.params["inner"].shape)
    8 (5, 4)
    """

    problem: Regression
    params: dict[str, Array]

    @staticmethod
    @eqx.filter_jit
    def draw(key: Key[Array, ""], *, inputs: int, hidden: int, n: int, dtype: DTypeLike = jnp.float32) -> "TanhNet":
        """Draw inputs and labels from N(0, 1) and weights from N(0, 1/fan-in)."""
        k = jax.random.split(key, 4)
        x, y = jax.random.normal(k[0], (n, inputs), dtype), jax.random.normal(k[1], (n,), dtype)
        params = {
            "inner": jax.random.normal(k[2], (hidden, inputs), dtype) / jnp.sqrt(inputs).astype(dtype),
            "outer": jax.random.normal(k[3], (hidden,), dtype) / jnp.sqrt(hidden).astype(dtype),
        }
        return TanhNet(Regression(predict, x, y), params)
