"""Bounds on the restricted isometry constant of given measurements, for matrices of low rank."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from undertow import _validate as validate
from undertow._validate import KeyLike
from undertow.spectral import power_iteration

__all__ = ["Isometry", "rip"]


class Isometry(NamedTuple):
    """Bounds on delta in (1 - delta)|M|^2 <= 1/m sum <X_i, M>^2 <= (1 + delta)|M|^2 over symmetric M of a rank."""

    least: float
    """A lower bound on delta: the largest deviation at the ends of ascents from random starts."""
    most: float
    """An upper bound on delta: the deviation over matrices of any rank (1 if m is below the dimension)."""
    spread: float
    """The difference between the highest and the median end of the ascents; small if they agree."""
    starts: int


def rip(
    measurements: Float[Array, "m d d"], rank: int, *, key: KeyLike = 0, starts: int = 16, sweeps: int = 60
) -> Isometry:
    """Return bounds on the restricted isometry constant of measurements, for symmetric matrices of at most this rank.

    Its exact computation is NP-hard. Power iteration with a projection on the rank ascends from random starts to local
    maxima of the deviation, a lower bound that is attained. The extreme eigenvalues without the projection are an upper
    bound.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.sensing.isometry import rip
    >>> from undertow.sensing.ensembles import Goe
    >>> delta = rip(Goe().draw(jax.random.key(0), 2000, 6, jnp.float32), rank=1)
    >>> print(0.05 < delta.least <= delta.most < 0.3)
    True
    """
    x = jnp.asarray(measurements)
    if x.ndim != 3 or x.shape[1] != x.shape[2] or 0 in x.shape or not np.isfinite(np.asarray(x)).all():
        raise ValueError(f"`rip(measurements)`: got shape {x.shape}; give finite numbers of shape (m, d, d).")
    rank = validate.positive_integer("rip", "rank", rank)
    starts = validate.positive_integer("rip", "starts", starts)
    if rank > x.shape[1]:
        raise ValueError(f"`rip(rank={rank})`: the matrices are {x.shape[1]} x {x.shape[1]}; take at most that.")
    x = (x + jnp.swapaxes(x, 1, 2)) / 2
    keys = jax.random.split(validate.as_key("rip", key), starts)
    up, down = (np.asarray(_climb(x, keys, rank, sign, sweeps)) for sign in (1.0, -1.0))
    best = up if up.max() > down.max() else down
    low, high = _extremes(x)
    return Isometry(
        least=float(max(up.max(), down.max())),
        most=float(max(high - 1, 1 - low)),
        spread=float(best.max() - np.median(best)),
        starts=starts,
    )


@eqx.filter_jit
def _climb(x: Array, keys: Array, rank: int, sign: float, sweeps: int) -> Float[Array, " starts"]:
    """Return sign * (1/m sum <X_i, M>^2 - 1) at the end of each ascent over unit M of the rank."""
    m, d = x.shape[:2]
    apply = lambda matrix: jnp.tensordot(jnp.tensordot(x, matrix, axes=2), x, axes=1) / m
    # the ascent direction of the smallest value is shift - operator; the shift keeps it positive
    shift = jnp.asarray(0.0 if sign > 0 else 3.0, x.dtype)

    def cut(matrix: Array) -> Array:
        values, vectors = jnp.linalg.eigh(matrix)
        largest = jnp.argsort(-jnp.abs(values))[:rank]
        low = (vectors[:, largest] * values[largest][None]) @ vectors[:, largest].T
        return low / jnp.linalg.norm(low)

    def ascend(key: Array) -> Array:
        start = jax.random.normal(key, (d, d), x.dtype)
        move = lambda matrix: shift * matrix + sign * apply(matrix)
        end = power_iteration(move, cut(start + start.T), sweeps, cut)
        return sign * (jnp.vdot(end, apply(end)) - 1)

    return jax.lax.map(ascend, keys)


def _extremes(x: Array) -> tuple[float, float]:
    """Return the smallest and largest of 1/m sum <X_i, M>^2 over unit symmetric M of any rank."""
    m, d = x.shape[:2]
    rows, columns = np.triu_indices(d)
    weight = np.where(rows == columns, 1.0, np.sqrt(2.0))
    flat = np.asarray(x, np.float64)[:, rows, columns] * weight[None]
    if m < flat.shape[1]:
        return 0.0, float(np.linalg.eigvalsh(flat @ flat.T / m)[-1])
    values = np.linalg.eigvalsh(flat.T @ flat / m)
    return float(values[0]), float(values[-1])
