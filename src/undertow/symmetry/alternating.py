"""Equilibria of symmetries that do not commute: each in turn goes to its own, with the noise measured anew."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow.noise.base import AbstractNoise
from undertow.symmetry import closed_forms
from undertow.symmetry.commuting import Limits, Solved, members, relative, sweep
from undertow.symmetry.generators import AbstractDiagonal, AbstractSymmetry, DoubleRotation, Exponential
from undertow.symmetry.powers import entry_powers_now, powers, powers_now
from undertow.symmetry.recession import directions_at_infinity, is_diagonal

__all__ = ["solve_alternating"]

FAR = 30.0
"""exp(2 * 30) is 1e26: an amount beyond this is reported as infinite."""


def solve_alternating(
    noise: AbstractNoise, params: PyTree, symmetries: tuple, eta: Array, decay: Array, limits: Limits
) -> Solved:
    """Families that do not commute: the noise is looked at anew after every move."""
    shape = lambda s: () if isinstance(s, DoubleRotation) else jax.eval_shape(s.charge, params).shape
    held = [np.zeros(shape(s), bool) for s in symmetries]
    flat = [k for k, s in enumerate(symmetries) if is_diagonal(s)]
    directions: list[list[np.ndarray]] = []
    if len(flat) > 1:
        entries = entry_powers_now(noise, params)
        some = directions_at_infinity(tuple(symmetries[k] for k in flat), params, entries, float(decay))
        directions = [
            [parts[flat.index(k)] if k in flat else np.zeros(h.shape) for k, h in enumerate(held)] for parts in some
        ]
        held = members(directions, held)
    while True:
        ended = _alternate(noise, symmetries, params, held, eta, decay, limits)
        gone = _runaways(ended.amounts, held) if limits.missed_by(ended.unbalanced) else None
        if gone is None:
            break
        directions.append(gone)
        held = members([gone], held)
    lost = [0 if h.any() else count for h, count in zip(held, ended.lost, strict=True)]
    return Solved(ended.params, ended.amounts, ended.residuals, lost, directions, ended.sweeps)


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
    """Each symmetry in turn to its own equilibrium, until none is out of balance or one runs away."""
    amounts: list[Any] = [np.zeros(jax.eval_shape(s.charge, params).shape) for s in symmetries]
    lost = [0] * len(symmetries)
    residuals, unbalanced, sweeps = [], np.inf, 0
    while sweeps < limits.sweeps:
        insides = []
        for index, symmetry in enumerate(symmetries):
            params, move, gone, inside = _one(noise, symmetry, params, held[index], eta, decay, limits.tolerance)
            amounts[index] = np.where(np.isfinite(move), np.nan_to_num(amounts[index]) + move, move)
            lost[index] = max(lost[index], gone)
            insides.append(inside)
        sweeps += 1
        left = [_left(noise, s, params, i, eta, decay) for s, i in zip(symmetries, insides, strict=True)]
        residuals, before, unbalanced = [a for a, _ in left], unbalanced, max(b for _, b in left)
        stuck = unbalanced >= before and unbalanced < limits.rounding
        far = any(np.abs(a[np.isfinite(a)]).max(initial=0) > FAR for a in amounts)
        alone = len(symmetries) == 1 and sweeps > 1
        if unbalanced <= limits.tolerance or stuck or alone or far or not np.isfinite(unbalanced):
            break
    return _Ended(params, amounts, residuals, lost, unbalanced, sweeps)


def _runaways(amounts: list[np.ndarray], held: list[np.ndarray]) -> list[np.ndarray] | None:
    """The generators that were moved without end, as a direction; None where all have stayed near."""
    sizes = [np.abs(np.where(np.isfinite(a), a, 0)) for a in amounts]
    if not max(size.max(initial=0) for size in sizes) > FAR:
        return None
    far = [np.where(size > FAR / 10, a, 0) for size, a in zip(sizes, amounts, strict=True)]
    # a rotation is held as a whole
    return [part if part.shape == h.shape else np.asarray(float(part.any())) for part, h in zip(far, held, strict=True)]


def _one(
    noise: AbstractNoise,
    symmetry: AbstractSymmetry,
    params: PyTree,
    held: np.ndarray,
    eta: Array,
    decay: Array,
    tolerance: float,
) -> tuple[PyTree, np.ndarray, int, Any]:
    """One symmetry to its own equilibrium.

    The moved params, the amount (infinite at infinity, NaN without noise), directions at infinity, and where there is
    an equilibrium: a projector for rotations, else which generators.
    """
    if isinstance(symmetry, DoubleRotation):
        moved, found = _rotate(noise, symmetry, params, eta, decay)
        if held:
            return params, np.zeros(found.amount.shape), 0, np.zeros(found.amount.shape)
        if not np.any(found.balanced):  # a factor of zero, say: the limit of the orbit would be zero for both
            nothing = np.full(found.amount.shape, np.nan if int(found.silent) else 0.0)
            return params, nothing, int(found.lost), np.asarray(found.balanced)
        return moved, np.asarray(found.amount), int(found.lost), np.asarray(found.balanced)
    if isinstance(symmetry, AbstractDiagonal):
        swept = sweep((symmetry,), params, entry_powers_now(noise, params), [held], eta, decay, tolerance, 2)
        move = np.asarray(swept.amounts[0])
        return swept.params, move, 0, np.isfinite(move) & ~held
    assert isinstance(symmetry, Exponential)
    amount = np.asarray(0.0 if held else _root(noise, symmetry, params, eta, decay, tolerance))
    if np.isfinite(amount) and amount != 0:
        params = symmetry.orbit(params, float(amount))
    return params, amount, 0, np.isfinite(amount) & ~held


@eqx.filter_jit
def _rotate(
    noise: AbstractNoise, symmetry: DoubleRotation, params: PyTree, eta: Array, decay: Array
) -> tuple[PyTree, closed_forms.Balance]:
    found = powers(noise, params, symmetry)
    found = closed_forms.rotation(*symmetry.factors(params), found.plus, found.minus, eta, decay)
    return symmetry.replace(params, found.left, found.right), found


@eqx.filter_jit
def _pull(
    noise: AbstractNoise, symmetry: Exponential, params: PyTree, amount: Array, eta: Array, decay: Array
) -> tuple[Array, Array, Array]:
    """Along the orbit: the flow over eta/2, minus its derivative in the amount halved, and the size of A.

    They are sums of a t, a^2 t, and the root of those of a^4 t over a^2 t, a the eigenvalues and t what balances.
    """
    moved = symmetry.orbit(params, amount)
    found = powers(noise, moved, symmetry)
    k, covariance = 2 * decay / eta, noise.covariance(moved)
    total = lambda form: covariance.moment(form) + k * form(moved)
    slope, fourth = total(lambda v: symmetry.norm(v) ** 2), total(lambda v: symmetry.norm(symmetry.apply(v)) ** 2)
    size = jnp.sqrt(fourth / jnp.where(slope > 0, slope, 1))
    return found.plus - found.minus - 2 * k * symmetry.charge(moved), slope, size


def _root(
    noise: AbstractNoise, symmetry: Exponential, params: PyTree, eta: Array, decay: Array, tolerance: float
) -> float:
    """The amount where the flow vanishes: it falls along the orbit, so that a sign change can be closed in on."""
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


def _left(
    noise: AbstractNoise, symmetry: AbstractSymmetry, params: PyTree, inside: Any, eta: Array, decay: Array
) -> tuple[float, float]:
    """The largest relative flow along a symmetry, in all directions and in those that have an equilibrium."""
    if isinstance(symmetry, Exponential):
        gap, slope, size = (float(x) for x in _pull(noise, symmetry, params, jnp.zeros((), eta.dtype), eta, decay))
        left = abs(gap) * size / slope if slope > 0 else 0.0
        return left, left if inside else 0.0
    found = powers_now(noise, params, symmetry)
    up, down = (np.asarray(x, np.float64) for x in symmetry.pair(params, params))
    k = float(2 * decay / eta)
    up, down = np.asarray(found.plus) + k * down, np.asarray(found.minus) + k * up
    if isinstance(symmetry, DoubleRotation):
        scale = np.abs(up).max() + np.abs(down).max()
        left = lambda gap: float(np.abs(gap).max() / scale) if scale > 0 else 0.0
        return left(up - down), left(inside @ (up - down) @ inside)
    each = np.asarray(relative(jnp.maximum(up, 0), jnp.maximum(down, 0)))
    return float(each.max()), float(np.where(inside, each, 0).max())
