"""The equilibrium of linked symmetries, by sweeps of the closed forms."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undertow.torch._threads import one_thread
from undertow.torch.census.axes import move
from undertow.torch.equilibrium.amounts import general_amount
from undertow.torch.equilibrium.charge_moments import batched, centred_noise, charge_moments
from undertow.torch.equilibrium.components import Component

__all__ = ["IMBALANCE_TOL", "MAX_SWEEPS", "SolvedComponent", "solve"]

MAX_SWEEPS = 500
IMBALANCE_TOL = 1e-7
"""Imbalances below this are not moved: the move would change no digit of a weight in float32."""


class SolvedComponent(NamedTuple):
    """A component at its equilibrium."""

    values: dict[str, Tensor]
    momentum: dict[str, Tensor]
    amounts: list[np.ndarray]
    """The amount by which each symmetry was moved, summed over all sweeps."""
    infinite: list[int]
    dead: list[int]
    sweeps: int


@one_thread()
def _transform(amount: np.ndarray) -> Tensor:
    """Return exp(amount): factors, or matrices."""
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
    weight_decay: float,
) -> SolvedComponent:
    """Move each symmetry of a component to its own equilibrium in turn, until none moves any more.

    F = eta/4 Tr Sigma + lambda/2 |params|^2 falls with every move and is convex along the orbit.
    """
    values = {name: values[name].double() for name in part.parameters}
    noise = centred_noise(stacks, part.symmetries)
    given = {name: m.double() for name, m in momentum.items()}
    momentum = {name: given.get(name, torch.zeros_like(value)) for name, value in values.items()} if given else {}
    of_stacks = [
        replace(s, plus=tuple(map(batched, s.plus)), minus=tuple(map(batched, s.minus))) for s in part.symmetries
    ]
    moved: list[np.ndarray] = [np.zeros(0)] * len(part.symmetries)
    infinite, dead = [0] * len(part.symmetries), [0] * len(part.symmetries)
    sweeps, largest = 0, np.inf
    while largest > IMBALANCE_TOL and sweeps < MAX_SWEEPS:
        sweeps, largest = sweeps + 1, 0.0
        for place, symmetry in enumerate(part.symmetries):
            amount = general_amount(symmetry, charge_moments(symmetry, values, noise), step_size, weight_decay)
            infinite[place], dead[place] = amount.infinite, amount.dead
            moved[place] = amount.amount if not moved[place].size else moved[place] + amount.amount
            imbalance = amount.imbalance
            if imbalance > IMBALANCE_TOL:
                transform = _transform(amount.amount)
                values |= move(values, symmetry, transform)
                noise |= move(noise, of_stacks[place], transform, gradient=True)
                momentum |= move(momentum, symmetry, transform, gradient=True) if momentum else {}
            largest = max(largest, imbalance)
    return SolvedComponent(values, {name: momentum[name] for name in given}, moved, infinite, dead, sweeps)
