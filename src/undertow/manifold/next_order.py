"""The error of the averaged flow, from the next order in the step size.

The averaged flow has the covariance of SGD in a stationary state and no third cumulant. Here the mean m, the covariance
C and the third cumulant K of SGD are followed from the start, step by step, without an assumption of slow motion
(`moment_map`). The distance of m to the end of the flow is the estimate of its error.

Most steps are taken together. With P the decay of the moments in one step by the Hessian at m, and Y+ = P Y + b their
step, b changes slowly and is extrapolated from two points:

    Y(n + N) = P^N Y(n) + sum_k P^(N-1-k) (b(n) + k b')
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow.manifold.moment_map import Cumulants, MomentMap, Unravel
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractSampled

__all__ = ["NextOrder", "PathMoments", "cheap", "follow_moments", "next_moments", "next_order", "strides", "too_large"]

PARAMETERS = 100
"""The largest number D of parameters: the third cumulant has D^3 numbers."""

COLUMNS = 1000
"""The largest number of columns of a factor of the noise: the samples of a minibatch."""

CHEAP = 3_000_000
"""The largest D^3 max(D, columns, samples) at which the estimate is made by default."""

SHARE, EQUAL = 0.1, 150
"""The longest stride as a share of the steps before it, and the least number of strides in a long run."""


class NextOrder(NamedTuple):
    """The distance of the mean of SGD to the end of the averaged flow, from the next order in the step size."""

    distance: float | None
    """None where the predicted fluctuations grow beyond the size of the parameters."""
    spread: float
    """The largest predicted root mean square distance of SGD to its mean, over the norm of the parameters."""


class PathMoments(NamedTuple):
    """The mean and the covariance of SGD after each stride, with the start."""

    mean: Float[Array, "times D"]
    covariance: Float[Array, "times D D"]


def strides(steps: float) -> np.ndarray:
    """Return numbers of steps that are taken together, with the sum `steps`: one by one at first."""
    lengths, done = [], 0.0
    while steps - done > 1e-9 * steps:
        lengths.append(min(max(1.0, min(SHARE * done, steps / EQUAL)), steps - done))
        done += lengths[-1]
    return np.asarray(lengths)


def too_large(noise: AbstractNoise, params: PyTree) -> str | None:
    """Return why the next order is too expensive; None where it is not."""
    size, columns = trees.count(params), _columns(noise, params)
    if size > PARAMETERS:
        return f"it needs at most {PARAMETERS} parameters, and these are {size}"
    return f"it needs at most {COLUMNS} samples, and these are {columns}" if columns > COLUMNS else None


def cheap(noise: AbstractNoise, params: PyTree) -> bool:
    """Return whether the next order takes about as long as the averaged flow, or a few seconds."""
    samples = noise.problem.size if isinstance(noise.problem, AbstractSampled) else 1
    size = trees.count(params)
    return size**3 * max(size, _columns(noise, params), samples) <= CHEAP


def _columns(noise: AbstractNoise, params: PyTree) -> int:
    factor = jax.eval_shape(lambda p: noise.covariance(p).factor(), params)
    return jax.tree.leaves(factor)[0].shape[-1]


def next_order(
    noise: AbstractNoise, params: PyTree, end: Float[Array, " D"], step_size: float, time: float
) -> NextOrder:
    """Return the error of an averaged flow from `params` that ends at `end`."""
    start, unravel = jax.flatten_util.ravel_pytree(params)
    eta, lengths = (jnp.asarray(x, start.dtype) for x in (step_size, strides(time / step_size)))
    mean, covariance = (np.asarray(x, np.float64) for x in follow_moments(noise, unravel, start, eta, lengths))
    with np.errstate(all="ignore"):
        # rounding can make a trace of zero negative, and the start may be zero
        size = np.maximum(np.linalg.norm(mean, axis=1), np.finfo(mean.dtype).tiny)
        spreads = np.sqrt(np.maximum(np.trace(covariance, axis1=1, axis2=2), 0)) / size
        spread, distance = float(np.max(spreads)), float(np.linalg.norm(mean[-1] - np.asarray(end)))
    return NextOrder(distance if spread < 1 and math.isfinite(distance) else None, spread)


@eqx.filter_jit
def follow_moments(
    noise: AbstractNoise,
    unravel: Unravel,
    start: Float[Array, " D"],
    step_size: Float[Array, ""],
    lengths: Float[Array, " times"],
) -> PathMoments:
    """Return the moments of SGD from one point after each stride of `lengths` steps."""
    step = MomentMap(noise, unravel, step_size)
    square = jnp.zeros((start.size,) * 2, start.dtype)
    moments = Cumulants(start, square, jnp.zeros((start.size,) * 3, start.dtype))

    def advance(carry: tuple[Cumulants, Cumulants, Cumulants, Array], length: Array) -> tuple[tuple, PathMoments]:
        now, before, change_before, gap = carry
        after, hessian = step(now)
        change = _subtract(after, now)
        later = _stride(step_size, hessian, now, change, before, change_before, length, gap, jnp.sum(lengths))
        return (later, now, change, length), PathMoments(later.mean, later.covariance)

    # before the first stride: an infinite gap, so that nothing is extrapolated
    first = (moments, moments, moments, jnp.asarray(jnp.inf, start.dtype))
    rest = jax.lax.scan(advance, first, lengths)[1]
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), PathMoments(start, square), rest)


@eqx.filter_jit
def next_moments(
    noise: AbstractNoise, unravel: Unravel, point: Float[Array, " D"], step_size: Float[Array, ""]
) -> tuple[Float[Array, " D"], Float[Array, "D D"], Float[Array, "D D D"]]:
    """Return the mean step F, C and K of the stationary state around a point with positive curvatures."""
    step = MomentMap(noise, unravel, step_size)

    def settle(_: Array, moments: Cumulants) -> Cumulants:
        after, hessian = step(moments)
        forever = jnp.asarray(1e9, point.dtype)
        change = _subtract(after, moments)
        later = _stride(step_size, hessian, moments, change, moments, change, forever, forever, forever)
        return later._replace(mean=point)

    square = jnp.zeros((point.size,) * 2, point.dtype)
    moments = Cumulants(point, square, jnp.zeros((point.size,) * 3, point.dtype))
    moments = jax.lax.fori_loop(0, 100, settle, moments)
    after = step(moments)[0]
    return (after.mean - point) / step_size, moments.covariance, moments.cumulant


def _subtract(left: Cumulants, right: Cumulants) -> Cumulants:
    return jax.tree.map(jnp.subtract, left, right)


def _stride(
    eta: Array,
    hessian: Float[Array, "D D"],
    now: Cumulants,
    change: Cumulants,
    before: Cumulants,
    change_before: Cumulants,
    length: Array,
    gap: Array,
    total: Array,
) -> Cumulants:
    """Return the moments after `length` of `total` steps; `before` are the moments `gap` steps ago.

    The third cumulant keeps its value along directions that do not relax in the whole time. It would grow there,
    because only the fourth cumulant stabilises it, and it does not move the mean at this order.
    """
    curvature, v = jnp.linalg.eigh((hessian + hessian.T) / 2)
    kept = 1 - eta * jnp.maximum(curvature, 0)
    left = Cumulants(kept, kept[:, None] * kept[None], kept[:, None, None] * kept[None, :, None] * kept[None, None])

    def one(x: Array, dx: Array, x_before: Array, dx_before: Array, ratio: Array) -> Array:
        # N steps of Y+ = P Y + b with b = (Y+ - Y) + (1 - P) Y
        lost = 1 - ratio
        short = lost * length < 1e-4
        safe = jnp.where(short, 1.0, lost)
        count = jnp.where(short, length, (1 - jnp.sign(ratio) * jnp.abs(ratio) ** length) / safe)
        late = jnp.where(short, length * (length - 1) / 2, (length - count) / safe)
        drift = _rotate(dx - dx_before, v.T) + lost * _rotate(x - x_before, v.T)
        step = count * _rotate(dx, v.T) + late / gap * drift
        return x + _rotate(jnp.where(lost * total < 1, 0, step) if x.ndim == 3 else step, v)

    return jax.tree.map(one, now, change, before, change_before, left)


def _rotate(tensor: Array, matrix: Float[Array, "D D"]) -> Array:
    """Return the tensor with the matrix applied to each of its indices."""
    for _ in range(tensor.ndim):  # the last index becomes the first
        tensor = jnp.tensordot(matrix, tensor, axes=[[1], [tensor.ndim - 1]])
    return tensor
