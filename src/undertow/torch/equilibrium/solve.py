"""From noise moments to the equilibrium of linked symmetries: sweeps of the closed forms of `undertow.symmetry`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from undertow.symmetry import closed_forms
from undertow.torch._threads import one_thread
from undertow.torch.census.axes import Relation, move
from undertow.torch.equilibrium.gather import Component, grams, in_stack, squares

__all__ = ["CLEAR", "Amount", "Sides", "Solved", "amounts", "noise_of", "sides", "solve"]

MOST_SWEEPS = 500
STILL = 1e-7
"""An imbalance below this is no move: it changes no digit of a weight in float32."""
CLEAR = 1e-10
"""Of the largest: noise of a direction below this is rounding. That of float32 gradients is near 1e-14, as squares."""


class Sides(NamedTuple):
    """What pushes a charge up and down: numbers a generator, or matrices a block."""

    noise_plus: np.ndarray
    noise_minus: np.ndarray
    weight_plus: np.ndarray
    weight_minus: np.ndarray


class Amount(NamedTuple):
    """How far a relation is from equilibrium: log P, with what has none."""

    amount: np.ndarray
    """(generators,), or symmetric (blocks, block, block)."""
    infinite: int
    dead: int

    @property
    @one_thread()
    def imbalance(self) -> float:
        """max |log(s+/s-)|: with P = exp(amount) noise powers change by P^-2 and P^2."""
        values = self.amount if self.amount.ndim == 1 else np.linalg.eigvalsh(self.amount)
        return float(4 * np.abs(values).max(initial=0.0))


class Solved(NamedTuple):
    """A component at its equilibrium."""

    values: dict[str, Tensor]
    momentum: dict[str, Tensor]
    amounts: list[np.ndarray]
    """The log of what each relation was moved by, over all sweeps."""
    infinite: list[int]
    dead: list[int]
    sweeps: int


def sides(relation: Relation, values: Mapping[str, Tensor], stacks: Mapping[str, Tensor]) -> Sides:
    """Noise and weights of both sides; the squares of the stacks (any, *shape) add up to the covariance: `noise_of`."""

    def total(side: tuple, noise: bool) -> np.ndarray:
        block = relation.block
        found = np.zeros(relation.size if block == 1 else (relation.size // block, block, block))
        for axis in side:
            tensor = stacks[axis.parameter] if noise else values[axis.parameter] + axis.shift
            where = in_stack(axis) if noise else axis
            found = found + (squares(tensor, where) if block == 1 else grams(tensor, where, block))
        return found

    return Sides(*(total(side, noise) for noise in (True, False) for side in (relation.plus, relation.minus)))


def noise_of(stacks: Mapping[str, Tensor], relations: Sequence[Relation]) -> dict[str, Tensor]:
    """Gradients (batches, *shape) as `sides` wants them: centred, over the root of batches - 1, in double precision.

    Scales need the noise of every entry and no more: where no GL mixes indices one row takes the place of all batches.
    """
    mixed = {name for relation in relations if relation.block > 1 for name in relation.parameters}
    found = {}
    for name, stack in stacks.items():
        centred = stack.double() - stack[:1].double()  # equal batches have no noise, to the bit
        centred = (centred - centred.mean(0, keepdim=True)) / (len(stack) - 1) ** 0.5
        found[name] = centred if name in mixed else centred.square().sum(0, keepdim=True).sqrt()
    return found


@partial(jax.jit, static_argnames="clear")
def _rotations(
    left: Any, right: Any, noise_left: Any, noise_right: Any, step_size: Any, weight_decay: Any, clear: float
) -> tuple[Any, Any, Any]:
    """`closed_forms.rotation` for every block; only U'U and WW' matter, so that roots of them stand for the factors."""
    rotate = jax.vmap(partial(closed_forms.rotation, clear=clear), in_axes=(0, 0, 0, 0, None, None))
    found = rotate(left, right, noise_left, noise_right, step_size, weight_decay)
    return found.amount, found.lost, found.silent


def _root(matrices: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrices)
    return vectors * np.sqrt(np.maximum(values, 0))[:, None, :]


@one_thread()
def amounts(relation: Relation, found: Sides, step_size: float, gamma: float, clear: float = CLEAR) -> Amount:
    """How far the equilibrium is, by the closed forms."""
    with jax.enable_x64(True), jax.default_device("cpu"):  # small matrices; the GPU is torch's
        if relation.block == 1:
            with np.errstate(all="ignore"):
                raw = np.asarray(closed_forms.rescaling_amount(*map(jnp.asarray, found), step_size, 2 * gamma))
            # np.inf where noise is one-sided, NaN where there is none
            return Amount(np.where(np.isfinite(raw), raw, 0.0), int(np.isinf(raw).sum()), int(np.isnan(raw).sum()))
        left, right = _root(found.weight_plus).swapaxes(1, 2), _root(found.weight_minus)
        noises = found.noise_plus, found.noise_minus
        amount, lost, silent = _rotations(left, right, *noises, float(step_size), 2 * float(gamma), clear)
        return Amount(np.asarray(amount), int(lost.sum()), int(silent.sum()))


@one_thread()
def _transform(amount: np.ndarray) -> Tensor:
    if amount.ndim == 1:
        return torch.as_tensor(np.exp(amount))
    values, vectors = np.linalg.eigh(amount)
    return torch.as_tensor((vectors * np.exp(values)[:, None, :]) @ vectors.swapaxes(1, 2))


def solve(
    part: Component,
    values: dict[str, Tensor],
    stacks: Mapping[str, Tensor],
    momentum: dict[str, Tensor],
    step_size: float,
    gamma: float,
) -> Solved:
    """Each relation of a component in turn to its own equilibrium, until none moves.

    F = eta/4 Tr Sigma + gamma |params|^2 falls with every move and is convex along the orbit.
    """
    values = {name: values[name].double() for name in part.parameters}
    noise = noise_of(stacks, part.relations)
    moving = {name: m.double() for name, m in momentum.items()}
    momentum = {name: moving.get(name, torch.zeros_like(value)) for name, value in values.items()} if moving else {}
    stacked = [
        replace(r, plus=tuple(map(in_stack, r.plus)), minus=tuple(map(in_stack, r.minus))) for r in part.relations
    ]
    moved: list[np.ndarray] = [np.zeros(0)] * len(part.relations)
    infinite, dead = [0] * len(part.relations), [0] * len(part.relations)
    sweeps, largest = 0, np.inf
    while largest > STILL and sweeps < MOST_SWEEPS:
        sweeps, largest = sweeps + 1, 0.0
        for place, relation in enumerate(part.relations):
            far = amounts(relation, sides(relation, values, noise), step_size, gamma)
            infinite[place], dead[place] = far.infinite, far.dead
            moved[place] = far.amount if not moved[place].size else moved[place] + far.amount
            if far.imbalance > STILL:
                transform = _transform(far.amount)
                values |= move(values, relation, transform)
                noise |= move(noise, stacked[place], transform, gradient=True)
                momentum |= move(momentum, relation, transform, gradient=True) if momentum else {}
            largest = max(largest, far.imbalance)
    return Solved(values, {name: momentum[name] for name in moving}, moved, infinite, dead, sweeps)
