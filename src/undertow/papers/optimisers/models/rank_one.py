"""A linear function with one hidden unit, f(x) = U (W.x), and data that it does not fit: one rescaling symmetry."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from undertow.problem import Problem
from undertow.symmetry.generators import Rescaling

__all__ = ["BALANCE", "log_ratio", "rank_one"]

Weights = dict[str, Array]

TRUTH = ((0.8, -0.5), (0.5, 0.3, -0.6, 0.4, 0.2))
"""U and W of the function that makes the targets."""
SCALES = (1.5, 1.2, 1.0, 0.7, 0.5)
"""Standard deviations of the inputs."""
RESIDUAL = 0.5
"""Standard deviation of the part of the targets that does not fit."""


BALANCE = Rescaling(lambda p: p["U"], lambda p: p["W"])
"""U grows and W shrinks by the same factor."""


def _loss(params: Weights, sample: tuple[Array, Array]) -> Float[Array, ""]:
    x, y = sample
    return jnp.sum((params["U"] * (params["W"] @ x) - y) ** 2) / 2


@eqx.filter_jit
def rank_one(key: Key[Array, ""], *, samples: int = 64, freedom: float = 0.0) -> tuple[Problem, Weights]:
    """Return the loss 1/2 mean |U (W.x) - y|^2 with noisy y, and its minimiser with |U| = |W|.

    There are 5 inputs of different scales and 2 outputs. Inputs and noise are normal, or have Student's t distribution
    with `freedom` degrees of freedom (over its standard deviation), which has heavier tails. The minimiser is the
    truncated singular value decomposition of the least-squares matrix in the metric of the inputs.

    >>> import jax
    >>> from undertow.papers.optimisers.models.rank_one import log_ratio, rank_one
    >>> problem, start = rank_one(jax.random.key(0))
    >>> print({name: leaf.shape for name, leaf in start.items()}, abs(log_ratio(start)) < 1e-6)
    {'U': (2,), 'W': (5,)} True
    """
    inputs, residuals = jax.random.split(key)
    if freedom:
        width = (freedom / (freedom - 2)) ** 0.5
        draw = lambda k, shape: jax.random.t(k, freedom, shape) / width
    else:
        draw = jax.random.normal
    u, w = map(jnp.array, TRUTH)
    x = draw(inputs, (samples, w.size)) * jnp.array(SCALES)[None]
    y = (x @ w)[:, None] * u[None] + RESIDUAL * draw(residuals, (samples, u.size))
    root = jnp.linalg.cholesky(x.T @ x)  # |x B' - y|^2 is |(B - least squares) root|^2 and a constant
    left, sizes, right = jnp.linalg.svd(jnp.linalg.lstsq(x, y)[0].T @ root, full_matrices=False)
    out, into = left[:, 0] * sizes[0], jnp.linalg.solve(root.T, right[0])
    scale = jnp.sqrt(jnp.linalg.norm(into) / jnp.linalg.norm(out))
    return Problem(_loss, (x, y)), {"U": out * scale, "W": into / scale}


def log_ratio(params: Weights) -> Float[Array, ""]:
    """Return log(|U|/|W|)."""
    return jnp.log(jnp.linalg.norm(params["U"]) / jnp.linalg.norm(params["W"]))
