"""How nearly measurements keep the length of matrices of low rank: the RIP constant of given ones, bracketed."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from undertow import _validate as validate
from undertow._validate import KeyLike

__all__ = ["Isometry", "rip"]


class Isometry(NamedTuple):
    """delta of (1 - delta)|M|^2 <= 1/m sum <X_i, M>^2 <= (1 + delta)|M|^2 over symmetric M of a rank, in between."""

    least: float
    """The largest deviation found by ascent from random starts: delta is at least this."""
    most: float
    """The deviation over matrices of any rank: delta is at most this (1 where m is below the dimension)."""
    spread: float
    """Between the highest and the median end of the ascents: small where they agree."""
    starts: int


def rip(
    measurements: Float[Array, "m d d"], rank: int, *, key: KeyLike = 0, starts: int = 16, sweeps: int = 60
) -> Isometry:
    """The restricted isometry constant of measurements, for symmetric matrices of at most this rank.

    Finding it exactly is NP-hard. Power iteration with a cut to the rank climbs from random starts to local maxima of
    the deviation, a lower bound that is attained; the extreme eigenvalues without the cut bound it from above.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.sensing.isometry import rip
    >>> from undertow.sensing.ensembles import Goe
    >>> found = rip(Goe().draw(jax.random.key(0), 2000, 6, jnp.float32), rank=1)
    >>> print(0.05 < found.least <= found.most < 0.3)
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
    """sign * (1/m sum <X_i, M>^2 - 1) at the end of each ascent over unit M of the rank."""
    m, d = x.shape[:2]
    apply = lambda matrix: jnp.tensordot(jnp.tensordot(x, matrix, axes=2), x, axes=1) / m
    # the ascent direction of the smallest value is shift - operator; the shift keeps it positive
    shift = jnp.asarray(0.0 if sign > 0 else 3.0, x.dtype)

    def cut(matrix: Array) -> Array:
        values, vectors = jnp.linalg.eigh(matrix)
        kept = jnp.argsort(-jnp.abs(values))[:rank]
        low = (vectors[:, kept] * values[kept][None]) @ vectors[:, kept].T
        return low / jnp.linalg.norm(low)

    def ascend(key: Array) -> Array:
        start = jax.random.normal(key, (d, d), x.dtype)
        step = lambda _, matrix: cut(shift * matrix + sign * apply(matrix))
        end = jax.lax.fori_loop(0, sweeps, step, cut(start + start.T))
        return sign * (jnp.vdot(end, apply(end)) - 1)

    return jax.lax.map(ascend, keys)


def _extremes(x: Array) -> tuple[float, float]:
    """The smallest and largest of 1/m sum <X_i, M>^2 over unit symmetric M of any rank."""
    m, d = x.shape[:2]
    rows, columns = np.triu_indices(d)
    weight = np.where(rows == columns, 1.0, np.sqrt(2.0))
    flat = np.asarray(x, np.float64)[:, rows, columns] * weight[None]
    if m < flat.shape[1]:
        return 0.0, float(np.linalg.eigvalsh(flat @ flat.T / m)[-1])
    values = np.linalg.eigvalsh(flat.T @ flat / m)
    return float(values[0]), float(values[-1])
