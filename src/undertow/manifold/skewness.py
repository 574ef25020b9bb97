"""The third cumulant of a stochastic gradient."""

from functools import singledispatch

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from undertow import _trees as trees
from undertow.covariance import AbstractCovariance, LabelCovariance, SampleCovariance, Sum
from undertow.manifold.geometry import jacobian

__all__ = ["skewness"]


@singledispatch
def skewness(covariance: AbstractCovariance, size: int) -> Float[Array, "D D D"]:
    """Return the third cumulant of a draw with this covariance; zero for symmetric noises."""
    return jnp.zeros((size,) * 3)


@skewness.register(SampleCovariance)
def _sample_skewness(covariance: SampleCovariance, size: int) -> Float[Array, "D D D"]:
    """Return amount^2 sum_i p_i (g_i - gbar)^3, exact for batches with replacement and without groups."""
    p, centred = _centred(covariance)
    return covariance.amount**2 * jnp.einsum("n,ni,nj,nk->ijk", p, centred, centred, centred, optimize=True)


@skewness.register(Sum)
def _sum_skewness(covariance: Sum, size: int) -> Float[Array, "D D D"]:
    """Return the sum over the parts; label noise is larger or smaller for samples with a large gradient."""
    total = sum((skewness(part, size) for part in covariance.parts), jnp.zeros((size,) * 3))
    labels = [part for part in covariance.parts if isinstance(part, LabelCovariance)]
    batches = [part for part in covariance.parts if isinstance(part, SampleCovariance)]
    for label, batch in ((label, batch) for label in labels for batch in batches):
        p, centred = _centred(batch)
        rows = jacobian(label.problem, label.params).reshape(p.size, -1, size)
        cross = jnp.einsum("n,nqi,nqj,nk->ijk", p, rows, rows, centred, optimize=True)
        total = total + label.amount * batch.amount * (cross + cross.transpose(0, 2, 1) + cross.transpose(2, 1, 0))
    return total


def _centred(covariance: SampleCovariance) -> tuple[Float[Array, " n"], Float[Array, "n D"]]:
    p = covariance.problem.probabilities
    gradients = jax.vmap(trees.ravel)(covariance.problem.sample_gradients(covariance.params))
    return p, gradients - (p @ gradients)[None]
