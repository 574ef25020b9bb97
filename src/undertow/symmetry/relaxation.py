"""Relaxation times: the number of steps in which a charge approaches its noise equilibrium by a factor e.

Along the orbit of a generator A, with Sigma the covariance of one stochastic gradient, the charge C changes by
d C/d amount = params'A^2 params, and the flow of noise and weight decay, G = eta/2 Tr[Sigma A] - 2 lambda C, by
d G/d amount = -eta Tr[Sigma A^2] - 2 lambda params'A^2 params. So the charge relaxes at the rate

    -dG/dC = 2 lambda + eta Tr[Sigma A^2]/(params'A^2 params)     per unit of time, and time = steps * eta.

For a neuron with outgoing weights u, incoming weights w and noise powers s_u, s_w the fraction is
(s_u + s_w)/(|u|^2 + |w|^2). It lies between s_u/|w|^2 and s_w/|u|^2, which are constant on the orbit.
"""

from functools import singledispatch
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow.noise.base import AbstractNoise
from undertow.symmetry.generators import AbstractSymmetry, Exponential
from undertow.symmetry.powers import Powers

__all__ = ["median_time", "metric_relaxation", "orbit_relaxation", "relaxation_steps", "slowest_time", "squares"]

Values = TypeVar("Values", np.ndarray, Array)
Scalar = float | int | Array
"""Types of a step size or a weight decay."""

RANK_RTOL = 1e-10
"""Weights or noise of a direction below this, relative to the largest, are rounding (a larger number in float32)."""


def relaxation_steps(noise: Values, weight: Values, step_size: Scalar, weight_decay: Scalar) -> Values:
    """Return 1/(eta (2 lambda + eta noise/weight)), in steps; infinite without a restoring force or without weight.

    `noise` is Tr[Sigma A^2] and `weight` is params'A^2 params, of NumPy or JAX: a number, one number per generator, or
    matrices (..., d, d) of a GL(d). Matrices give d times (..., d), the slowest first, from the generalised eigenvalues
    of noise and weight. The first and the last are those of the whole matrix of charges: the flow is linear in a
    symmetric amount X, and tr(X noise X)/tr(X weight X) has the same extremes. Those between are exact where noise and
    weight commute.

    >>> import numpy as np
    >>> from undertow.symmetry.relaxation import relaxation_steps
    >>> print(relaxation_steps(np.array([4.0, 0.0]), np.array([2.0, 1.0]), 0.1, 0.0))
    [50. inf]
    >>> print(relaxation_steps(np.diag([4.0, 1.0]), np.diag([2.0, 1.0]), 0.1, 0.0))
    [100.  50.]
    """
    xp = noise.__array_namespace__()
    if noise.ndim < 2:
        moved = weight > 0
        rates = noise / xp.where(moved, weight, 1)
    else:
        size = noise.shape[-1]
        clear = max(RANK_RTOL, 8 * size * float(xp.finfo(noise.dtype).eps))
        values, vectors = xp.linalg.eigh(weight)
        kept = values > clear * xp.maximum(values[..., -1:], 1e-30)
        half = vectors * xp.where(kept, 1 / xp.sqrt(xp.where(kept, values, 1)), 0)[..., None, :]
        rates = xp.linalg.eigvalsh(xp.swapaxes(half, -1, -2) @ noise @ half)  # directions without weight sort first
        rates = xp.where(rates > clear * rates[..., -1:], rates, 0)
        moved = xp.broadcast_to(xp.arange(size), rates.shape) >= xp.sum(~kept, axis=-1, keepdims=True)
    speed = xp.where(moved, step_size * (2 * weight_decay + step_size * xp.maximum(rates, 0)), 0)
    return xp.where(speed > 0, 1 / xp.where(speed > 0, speed, 1), xp.inf)


def metric_relaxation(
    noise: Values,
    weight: Values,
    noise_follows: Values,
    weight_follows: Values,
    step_size: Scalar,
    weight_decay: Scalar,
    forgetting: Scalar,
) -> Values:
    """Return the relaxation time under Adam, in steps; infinite without a restoring force or without weight.

    `noise` is Tr[Sigma S A^2], `weight` is params'A^2 S^-1 params, and in the two that follow every entry has the
    factor sqrt(v)/(sqrt(v) + eps); `forgetting` is 1 - b2. Let params be moved by the amount s from the equilibrium,
    and v be that of the amount q. Then s' = -(2 r s - r~ q) and q' = kappa (s - q) with

        r = lambda + eta noise/(2 weight),    r~ = lambda weight_follows/weight + eta noise_follows/(2 weight),

    kappa = (1 - b2)/eta. The time is that of the slower mode. For eps = 0 and a short memory the rate is r; where
    v does not follow (r~ = 0) it is that of SGD, 2 r.

    >>> import numpy as np
    >>> from undertow.symmetry.relaxation import metric_relaxation
    >>> one = np.array([1.0])
    >>> print(metric_relaxation(one, one, one, one, 0.1, 0.0, 0.99).round(), "where 1/(eta r) is 200")
    [201.] where 1/(eta r) is 200
    """
    xp = noise.__array_namespace__()
    moved = weight > 0
    safe = xp.where(moved, weight, 1)
    rate = weight_decay * weight / safe + step_size * noise / (2 * safe)
    follows = weight_decay * weight_follows / safe + step_size * noise_follows / (2 * safe)
    kappa = forgetting / step_size
    both = 2 * rate + kappa
    product = kappa * xp.where(moved, 2 * rate - follows, 0)
    speed = step_size * 2 * product / (both + xp.sqrt(xp.maximum(both**2 - 4 * product, 0)))
    return xp.where(speed > 0, 1 / xp.where(speed > 0, speed, 1), xp.inf)


def slowest_time(times: np.ndarray | Array) -> float:
    """Return the largest finite relaxation time; infinite where there is none."""
    finite = np.asarray(times)[np.isfinite(times)]
    return float(finite.max()) if finite.size else np.inf


def median_time(times: np.ndarray | Array) -> float:
    """Return the median of the finite relaxation times; infinite where there is none."""
    finite = np.asarray(times)[np.isfinite(times)]
    return float(np.median(finite)) if finite.size else np.inf


@singledispatch
def squares(symmetry: AbstractSymmetry, vector: PyTree) -> Array:
    """Return v'A^2 v in the shape of the charge: both sides added up where the eigenvalues of A are 1, -1 and 0."""
    plus, minus = symmetry.pair(vector, vector)
    return plus + minus


@squares.register(Exponential)
def _exponential_squares(symmetry: Exponential, vector: PyTree) -> Array:
    return symmetry.norm(vector) ** 2


@singledispatch
def orbit_relaxation(
    symmetry: AbstractSymmetry,
    noise: AbstractNoise,
    params: PyTree,
    power: Powers,
    step_size: Scalar,
    weight_decay: Scalar,
) -> Array:
    """Return the relaxation times at params, linearised along the orbit; `power` is the noise there.

    They are infinite where noise and weight decay push the charge in one direction only.
    """
    plus, minus = symmetry.pair(params, params)
    times = relaxation_steps(power.plus + power.minus, squares(symmetry, params), step_size, weight_decay)
    decay_ratio = 2 * weight_decay / step_size
    whole = (lambda x: jnp.trace(x)[None]) if plus.ndim == 2 else (lambda x: x)
    up, down = whole(power.plus + decay_ratio * minus), whole(power.minus + decay_ratio * plus)
    return jnp.where((up > 0) & (down > 0), times, jnp.inf)


@orbit_relaxation.register(Exponential)
def _exponential_relaxation(
    symmetry: Exponential,
    noise: AbstractNoise,
    params: PyTree,
    power: Powers,
    step_size: Scalar,
    weight_decay: Scalar,
) -> Array:
    """Return the relaxation time of one generator, whose two sides are not known separately."""
    noise_square = noise.covariance(params).moment(lambda v: squares(symmetry, v))
    return relaxation_steps(noise_square, squares(symmetry, params), step_size, weight_decay)
