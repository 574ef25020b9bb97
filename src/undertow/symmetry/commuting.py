"""Equilibria of commuting symmetries: diagonal families are balanced in turn until no family moves any more."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.noise.base import AbstractNoise
from undertow.symmetry import closed_forms
from undertow.symmetry.powers import entry_powers_now
from undertow.symmetry.recession import directions_at_infinity
from undertow.symmetry.relaxation import relaxation_steps

__all__ = ["Limits", "Solved", "Swept", "members", "relative", "solve_commuting", "sweep"]


class Limits(NamedTuple):
    """Stopping criteria."""

    tolerance: float
    """The residual below which a symmetry is balanced."""
    rounding: float
    """A residual below this value that no longer decreases is rounding."""
    sweeps: int

    def missed_by(self, residual: float) -> bool:
        """Return whether a residual is too large for a balanced symmetry."""
        return not residual <= max(self.tolerance, self.rounding)


class Solved(NamedTuple):
    """The result of a solver. Lists have one entry per symmetry."""

    params: PyTree
    amounts: list[np.ndarray]
    """Infinite for a generator whose equilibrium is at infinity, NaN for one without noise; neither is moved."""
    residuals: list[float]
    lost: list[int]
    """For rotations, the number of directions whose equilibrium is at infinity; 0 for other symmetries."""
    directions: list[list[np.ndarray]]
    """Combinations of generators whose equilibrium is at infinity: see `recession`."""
    sweeps: int
    relaxation: list[np.ndarray]
    """The relaxation times at the end, in steps: see `relaxation`."""


def solve_commuting(
    noise: AbstractNoise, params: PyTree, symmetries: tuple, eta: Array, decay: Array, limits: Limits
) -> Solved:
    """Return the equilibrium of commuting families, which needs the noise of every entry once and no other data."""
    entries = entry_powers_now(noise, params)
    held = [np.zeros(jax.eval_shape(s.charge, params).shape, bool) for s in symmetries]
    directions: list[list[np.ndarray]] = []
    swept = sweep(symmetries, params, entries, held, eta, decay, limits.tolerance, limits.sweeps)
    if limits.missed_by(float(swept.unbalanced)):
        directions = directions_at_infinity(symmetries, params, entries, float(decay))
        held = members(directions, held)
        swept = sweep(symmetries, params, entries, held, eta, decay, limits.tolerance, limits.sweeps)
    amounts = [np.asarray(a) for a in swept.amounts]
    residuals = [float(np.max(np.asarray(left))) for left in swept.residuals]
    relaxation = [np.asarray(times) for times in swept.relaxation]
    return Solved(swept.params, amounts, residuals, [0] * len(amounts), directions, int(swept.sweeps), relaxation)


def members(directions: list[list[np.ndarray]], held: list[np.ndarray]) -> list[np.ndarray]:
    """Return the masks `held` with all generators added that take part in one of the directions."""
    for direction in directions:
        held = [np.asarray(mask | (part != 0)) for mask, part in zip(held, direction, strict=True)]
    return held


class Swept(NamedTuple):
    """The result of sweeps. Lists have one entry per symmetry."""

    params: PyTree
    amounts: list[Array]
    """Infinite for a generator whose equilibrium is at infinity, NaN for a dead one; neither is moved."""
    residuals: list[Array]
    unbalanced: Array
    """The largest residual of the generators that are moved."""
    sweeps: Array
    relaxation: list[Array]
    """The relaxation times at the end, in steps."""


@eqx.filter_jit
def sweep(
    symmetries: tuple,
    params: PyTree,
    entries: PyTree,
    held: list,
    eta: Array,
    decay: Array,
    tolerance: float,
    most: int,
) -> Swept:
    """Move each family in turn to its own equilibrium, exactly, until no family has a flow left.

    Generators that are held fixed, have their equilibrium at infinity or are dead are not moved.
    """
    shapes = [jax.eval_shape(s.charge, params) for s in symmetries]
    zero = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]

    def at(amounts: list[Array]) -> tuple[PyTree, PyTree]:
        logs = trees.zeros_like(params)
        for symmetry, amount in zip(symmetries, amounts, strict=True):
            logs = trees.add(logs, symmetry.logs(params, amount))
        squares = jax.tree.map(lambda p, log: p**2 * jnp.exp(2 * log), params, logs)
        return squares, jax.tree.map(lambda s, log: s * jnp.exp(-2 * log), entries, logs)

    def step(index: int, amounts: list[Array]) -> tuple[Array, Array, Array]:
        """Return the amount to the equilibrium of one family, which of its generators may move, and its residuals."""
        symmetry = symmetries[index]
        squares, powered = at(amounts)
        (out, into), (s_out, s_in) = symmetry.sums(squares), symmetry.sums(powered)
        move = closed_forms.rescaling_amount(s_out, s_in, out, into, eta, decay)
        decay_ratio = 2 * decay / eta
        left = relative(s_out + decay_ratio * into, s_in + decay_ratio * out)
        return move, jnp.isfinite(move) & ~held[index], left

    def body(state: tuple[list[Array], Array, Array]) -> tuple[list[Array], Array, Array]:
        amounts, _, count = state
        for index in range(len(symmetries)):
            move, free, _ = step(index, amounts)
            moved = amounts[index] + jnp.where(free, move, 0)
            amounts = [moved if k == index else a for k, a in enumerate(amounts)]
        return amounts, unbalanced(amounts), count + 1

    def unbalanced(amounts: list[Array]) -> Array:
        moves = [step(index, amounts) for index in range(len(symmetries))]
        return jnp.max(jnp.stack([jnp.max(jnp.where(free, left, 0)) for _, free, left in moves]))

    def going(state: tuple[list[Array], Array, Array]) -> Array:
        return (state[1] > tolerance) & (state[2] < most)

    amounts, residual, count = jax.lax.while_loop(going, body, body((zero, jnp.asarray(jnp.inf), jnp.asarray(0))))
    moved = params
    for symmetry, amount in zip(symmetries, amounts, strict=True):
        moved = symmetry.orbit(moved, amount)
    last = [step(index, amounts) for index in range(len(symmetries))]
    marked = [jnp.where(jnp.isfinite(move), a, move) for (move, _, _), a in zip(last, amounts, strict=True)]
    squares, powered = at(amounts)
    sums = [(sum(s.sums(powered)), sum(s.sums(squares))) for s in symmetries]
    relaxation = [relaxation_steps(jnp.asarray(a), jnp.asarray(b), eta, decay) for a, b in sums]
    return Swept(moved, marked, [left for _, _, left in last], residual, count, relaxation)


def relative(up: Array, down: Array) -> Array:
    """Return |up - down| over up + down, zero where both vanish."""
    total = up + down
    return jnp.where(total > 0, jnp.abs(up - down) / jnp.where(total > 0, total, 1), 0)
