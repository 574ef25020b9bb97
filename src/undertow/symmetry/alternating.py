"""Equilibria of symmetries that do not commute: each is balanced in turn, and the noise is computed anew each time."""

from functools import singledispatch
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow.noise.base import AbstractNoise
from undertow.symmetry import closed_forms
from undertow.symmetry.commuting import Limits, Solved, members, relative, sweep
from undertow.symmetry.generators import AbstractDiagonal, AbstractSymmetry, DoubleRotation, Exponential
from undertow.symmetry.powers import Powers, entry_powers_now, powers
from undertow.symmetry.recession import directions_at_infinity, is_diagonal
from undertow.symmetry.relaxation import orbit_relaxation

__all__ = ["solve_alternating"]

FAR = 30.0
"""exp(2 * 30) is 1e26: an amount beyond this is reported as infinite."""


def solve_alternating(
    noise: AbstractNoise, params: PyTree, symmetries: tuple, eta: Array, decay: Array, limits: Limits
) -> Solved:
    """Return the equilibrium of families that do not commute; the noise is computed anew after every move."""
    shapes = [jax.eval_shape(s.charge, params).shape for s in symmetries]
    held = [np.zeros(() if len(shape) == 2 else shape, bool) for shape in shapes]  # a rotation is held as a whole
    flat = [k for k, s in enumerate(symmetries) if is_diagonal(s)]
    directions: list[list[np.ndarray]] = []
    if len(flat) > 1:
        entries = entry_powers_now(noise, params)
        diagonal = directions_at_infinity(tuple(symmetries[k] for k in flat), params, entries, float(decay))
        directions = [
            [parts[flat.index(k)] if k in flat else np.zeros(h.shape) for k, h in enumerate(held)] for parts in diagonal
        ]
        held = members(directions, held)
    while True:
        ended = _alternate(noise, symmetries, params, held, eta, decay, limits)
        endless = _runaways(ended.amounts, held) if limits.missed_by(ended.unbalanced) else None
        if endless is None:
            break
        directions.append(endless)
        held = members([endless], held)
    lost = [0 if h.any() else count for h, count in zip(held, ended.lost, strict=True)]
    times = [np.asarray(_relaxation(noise, ended.params, symmetry, eta, decay)) for symmetry in symmetries]
    return Solved(ended.params, ended.amounts, ended.residuals, lost, directions, ended.sweeps, times)


@eqx.filter_jit
def _relaxation(noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry, eta: Array, decay: Array) -> Array:
    return orbit_relaxation(symmetry, noise, params, powers(noise, params, symmetry), eta, decay)


class _Ended(NamedTuple):
    """The state after alternating over the symmetries: see `Solved` and `Swept`."""

    params: PyTree
    amounts: list[np.ndarray]
    residuals: list[float]
    lost: list[int]
    unbalanced: float
    sweeps: int


def _alternate(
    noise: AbstractNoise,
    symmetries: tuple,
    params: PyTree,
    held: list[np.ndarray],
    eta: Array,
    decay: Array,
    limits: Limits,
) -> _Ended:
    """Move each symmetry in turn to its own equilibrium, until all are balanced or one amount grows too large."""
    amounts: list[np.ndarray] = [np.zeros(jax.eval_shape(s.charge, params).shape) for s in symmetries]
    lost = [0] * len(symmetries)
    residuals, unbalanced, sweeps = [], np.inf, 0
    while sweeps < limits.sweeps:
        insides = []
        for index, symmetry in enumerate(symmetries):
            params, move, removed, inside = _balance(symmetry, noise, params, held[index], eta, decay, limits.tolerance)
            amounts[index] = np.where(np.isfinite(move), np.nan_to_num(amounts[index]) + move, move)
            lost[index] = max(lost[index], removed)
            insides.append(inside)
        sweeps += 1
        left = [_residual(s, noise, params, i, eta, decay) for s, i in zip(symmetries, insides, strict=True)]
        residuals, before, unbalanced = [a for a, _ in left], unbalanced, max(b for _, b in left)
        stuck = unbalanced >= before and unbalanced < limits.rounding
        far = any(np.abs(a[np.isfinite(a)]).max(initial=0) > FAR for a in amounts)
        alone = len(symmetries) == 1 and sweeps > 1
        if unbalanced <= limits.tolerance or stuck or alone or far or not np.isfinite(unbalanced):
            break
    return _Ended(params, amounts, residuals, lost, unbalanced, sweeps)


def _runaways(amounts: list[np.ndarray], held: list[np.ndarray]) -> list[np.ndarray] | None:
    """Return the generators whose amounts exceed `FAR`, as a direction; None if there are none."""
    sizes = [np.abs(np.where(np.isfinite(a), a, 0)) for a in amounts]
    if not max(size.max(initial=0) for size in sizes) > FAR:
        return None
    far = [np.where(size > FAR / 10, a, 0) for size, a in zip(sizes, amounts, strict=True)]
    # a rotation is held as a whole
    return [part if part.shape == h.shape else np.asarray(float(part.any())) for part, h in zip(far, held, strict=True)]


class _Move(NamedTuple):
    """The move of one symmetry to its own equilibrium."""

    params: PyTree
    amount: np.ndarray
    """Infinite where the equilibrium is at infinity, NaN without noise."""
    removed: int
    """The number of directions at infinity."""
    inside: np.ndarray | np.bool_
    """The directions that have an equilibrium: a projector for rotations, a mask of generators otherwise."""


@singledispatch
def _balance(
    symmetry: AbstractSymmetry,
    noise: AbstractNoise,
    params: PyTree,
    held: np.ndarray,
    eta: Array,
    decay: Array,
    tolerance: float,
) -> _Move:
    """Move one symmetry to its own equilibrium."""
    raise TypeError(f"`equilibrium`: no solver for a symmetry of type {type(symmetry).__name__}.")


@_balance.register(DoubleRotation)
def _balance_rotation(
    symmetry: DoubleRotation,
    noise: AbstractNoise,
    params: PyTree,
    held: np.ndarray,
    eta: Array,
    decay: Array,
    tolerance: float,
) -> _Move:
    moved, balance = _rotate(noise, symmetry, params, eta, decay)
    if held:
        return _Move(params, np.zeros(balance.amount.shape), 0, np.zeros(balance.amount.shape))
    if not np.asarray(balance.balanced).any():  # for instance a factor of zero: both factors would be zero in the limit
        nothing = np.full(balance.amount.shape, np.nan if int(balance.silent) else 0.0)
        return _Move(params, nothing, int(balance.lost), np.asarray(balance.balanced))
    return _Move(moved, np.asarray(balance.amount), int(balance.lost), np.asarray(balance.balanced))


@_balance.register(AbstractDiagonal)
def _balance_diagonal(
    symmetry: AbstractDiagonal,
    noise: AbstractNoise,
    params: PyTree,
    held: np.ndarray,
    eta: Array,
    decay: Array,
    tolerance: float,
) -> _Move:
    swept = sweep((symmetry,), params, entry_powers_now(noise, params), [held], eta, decay, tolerance, 2)
    amount = np.asarray(swept.amounts[0])
    return _Move(swept.params, amount, 0, np.isfinite(amount) & ~held)


@_balance.register(Exponential)
def _balance_exponential(
    symmetry: Exponential,
    noise: AbstractNoise,
    params: PyTree,
    held: np.ndarray,
    eta: Array,
    decay: Array,
    tolerance: float,
) -> _Move:
    amount = np.asarray(0.0 if held else _root(noise, symmetry, params, eta, decay, tolerance))
    if np.isfinite(amount) and amount != 0:
        params = symmetry.orbit(params, float(amount))
    return _Move(params, amount, 0, np.isfinite(amount) & ~held)


@eqx.filter_jit
def _rotate(
    noise: AbstractNoise, symmetry: DoubleRotation, params: PyTree, eta: Array, decay: Array
) -> tuple[PyTree, closed_forms.Balance]:
    power = powers(noise, params, symmetry)
    balance = closed_forms.rotation(*symmetry.factors(params), power.plus, power.minus, eta, decay)
    return symmetry.replace(params, balance.left, balance.right), balance


@eqx.filter_jit
def _pull(
    noise: AbstractNoise, symmetry: Exponential, params: PyTree, amount: Array, eta: Array, decay: Array
) -> tuple[Array, Array, Array]:
    """Return the flow over eta/2 on the orbit, minus half its derivative in the amount, and the size of A.

    With the eigenvalues a of A and the noise and decay t along its eigenvectors, these are the sums of a t and a^2 t,
    and the square root of the sum of a^4 t over that of a^2 t.
    """
    moved = symmetry.orbit(params, amount)
    power = powers(noise, moved, symmetry)
    decay_ratio, covariance = 2 * decay / eta, noise.covariance(moved)
    total = lambda form: covariance.moment(form) + decay_ratio * form(moved)
    slope, fourth = total(lambda v: symmetry.norm(v) ** 2), total(lambda v: symmetry.norm(symmetry.apply(v)) ** 2)
    size = jnp.sqrt(fourth / jnp.where(slope > 0, slope, 1))
    return power.plus - power.minus - 2 * decay_ratio * symmetry.charge(moved), slope, size


def _root(
    noise: AbstractNoise, symmetry: Exponential, params: PyTree, eta: Array, decay: Array, tolerance: float
) -> float:
    """Return the amount at which the flow vanishes. The flow decreases along the orbit, so brackets exist."""
    pull = lambda amount: float(_pull(noise, symmetry, params, jnp.asarray(amount, eta.dtype), eta, decay)[0])
    here, slope, size = (float(x) for x in _pull(noise, symmetry, params, jnp.zeros((), eta.dtype), eta, decay))
    if slope == 0:
        return np.nan
    if here == 0:
        return 0.0
    sign, near, far = np.sign(here), 0.0, np.sign(here) * 0.5
    while np.sign(pull(far)) == sign:
        near, far = far, 2 * far
        if abs(far) * size > FAR:
            return sign * np.inf
    if not np.isfinite(pull(far)):
        return sign * np.inf
    from scipy.optimize import brentq

    low, high = sorted((near, far))
    return float(brentq(pull, low, high, xtol=1e-14, rtol=max(tolerance, 4 * np.finfo(float).eps), maxiter=200))


@singledispatch
def _residual(
    symmetry: AbstractSymmetry,
    noise: AbstractNoise,
    params: PyTree,
    inside: np.ndarray | np.bool_,
    eta: Array,
    decay: Array,
) -> tuple[float, float]:
    """Return the largest relative flow along a symmetry, in all directions and in those that have an equilibrium."""
    up, down = _sides(symmetry, noise, params, eta, decay)
    each = np.asarray(relative(jnp.maximum(up, 0), jnp.maximum(down, 0)))
    return float(each.max()), float(np.where(inside, each, 0).max())


@_residual.register(DoubleRotation)
def _rotation_residual(
    symmetry: DoubleRotation, noise: AbstractNoise, params: PyTree, inside: np.ndarray, eta: Array, decay: Array
) -> tuple[float, float]:
    up, down = _sides(symmetry, noise, params, eta, decay)
    scale = np.abs(up).max() + np.abs(down).max()
    size = lambda gap: float(np.abs(gap).max() / scale) if scale > 0 else 0.0
    return size(up - down), size(inside @ (up - down) @ inside)


@_residual.register(Exponential)
def _exponential_residual(
    symmetry: Exponential,
    noise: AbstractNoise,
    params: PyTree,
    inside: np.ndarray | np.bool_,
    eta: Array,
    decay: Array,
) -> tuple[float, float]:
    gap, slope, size = (float(x) for x in _pull(noise, symmetry, params, jnp.zeros((), eta.dtype), eta, decay))
    residual = abs(gap) * size / slope if slope > 0 else 0.0
    return residual, residual if inside else 0.0


def _sides(
    symmetry: AbstractSymmetry, noise: AbstractNoise, params: PyTree, eta: Array, decay: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Return noise plus decay on the side that pushes the charge up and on the side that pushes it down."""
    power, pair = _power_and_size(noise, params, symmetry)
    up, down = (np.asarray(x, np.float64) for x in pair)
    decay_ratio = 2 * float(decay) / float(eta)
    plus, minus = np.asarray(power.plus), np.asarray(power.minus)
    return np.asarray(plus + decay_ratio * down), np.asarray(minus + decay_ratio * up)


@eqx.filter_jit
def _power_and_size(
    noise: AbstractNoise, params: PyTree, symmetry: AbstractSymmetry
) -> tuple[Powers, tuple[Array, Array]]:
    """Return the noise along a symmetry, and the size of the params on both sides."""
    return powers(noise, params, symmetry), symmetry.pair(params, params)
