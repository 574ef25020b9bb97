"""The equilibrium of linked symmetries, by sweeps of the closed forms."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undertow.torch._threads import one_thread
from undertow.torch.census.axes import move
from undertow.torch.equilibrium.components import Component
from undertow.torch.equilibrium.objectives import Objective

__all__ = ["IMBALANCE_TOL", "MAX_SWEEPS", "SolvedComponent", "solve"]

MAX_SWEEPS = 500
IMBALANCE_TOL = 1e-7
"""Imbalances below this are not moved: the move would change no digit of a weight in float32."""


class SolvedComponent(NamedTuple):
    """A component at its equilibrium."""

    values: dict[str, Tensor]
    states: list[dict[str, Tensor]]
    """Tensors of the optimiser, moved like gradients."""
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
    states: list[dict[str, Tensor]],
    objective: Objective,
) -> SolvedComponent:
    """Move each symmetry of a component to its own equilibrium in turn, until none moves any more.

    The cost of the objective falls with every move and is convex along the orbit. `states` move like gradients.
    """
    values = {name: values[name].double() for name in part.parameters}
    noise = objective.noise(stacks, part.symmetries)
    zeros = {name: torch.zeros_like(value) for name, value in values.items()}
    moving = [zeros | {name: m.double() for name, m in state.items()} if state else {} for state in states]
    moved: list[np.ndarray] = [np.zeros(0)] * len(part.symmetries)
    infinite, dead = [0] * len(part.symmetries), [0] * len(part.symmetries)
    sweeps, largest = 0, np.inf
    while largest > IMBALANCE_TOL and sweeps < MAX_SWEEPS:
        sweeps, largest = sweeps + 1, 0.0
        for place, symmetry in enumerate(part.symmetries):
            amount = objective.amount(symmetry, objective.moments(symmetry, values, noise))
            infinite[place], dead[place] = amount.infinite, amount.dead
            moved[place] = amount.amount if not moved[place].size else moved[place] + amount.amount
            imbalance = amount.imbalance
            if imbalance > IMBALANCE_TOL:
                transform = _transform(amount.amount)
                values |= move(values, symmetry, transform)
                noise |= move(noise, symmetry, transform, gradient=True)
                for state in filter(None, moving):
                    state |= move(state, symmetry, transform, gradient=True)
            largest = max(largest, imbalance)
    given = [{name: state[name] for name in before} for state, before in zip(moving, states, strict=True)]
    return SolvedComponent(values, given, moved, infinite, dead, sweeps)
