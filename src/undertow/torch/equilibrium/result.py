"""The result of `equilibrate`."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from undertow.estimate import Estimate
from undertow.torch._renamed import Renamed
from undertow.torch.census.axes import Symmetry
from undertow.torch.equilibrium.gradients import format_estimate

__all__ = ["COSTS", "Equilibrium", "MovedSymmetry", "restore"]

COSTS = {"sgd": "noise plus weight penalty", "adamw": "standard deviations plus weight penalty"}
"""Optimisers with what their equilibrium minimises."""


@dataclass(frozen=True)
class MovedSymmetry:
    """One symmetry before and after the move to equilibrium."""

    symmetry: Symmetry
    imbalance: tuple[float, float]
    """max |log(s+/s-)| before and after, measured on the batches, over the generators that have an equilibrium. s is
    the sum of variances of a side for SGD and of sqrt(v) for AdamW, each with the penalty of the other side."""
    amount: np.ndarray
    """Logarithm of the transformation: (generators,), or symmetric (blocks, block, block)."""
    infinite: int
    """Generators (directions of a GL) whose equilibrium is at infinity: one side has no noise, or is zero."""
    dead: int
    """Generators without any noise."""

    relation = Renamed("symmetry")

    @property
    def factor(self) -> float:
        """Largest factor by which a weight was scaled."""
        values = self.amount if self.amount.ndim == 1 else np.linalg.eigvalsh(self.amount)
        return float(np.exp(np.abs(values).max(initial=0.0)))


@dataclass(frozen=True)
class Equilibrium:
    """Result of `equilibrate`: measurements before and after the move. `undo()` restores the model to the bit."""

    moved: tuple[MovedSymmetry, ...]
    skipped: tuple[tuple[Symmetry, str], ...]
    """Symmetries that were not moved, each with the reason."""
    noise: tuple[Estimate, Estimate]
    """Tr Sigma of a minibatch gradient over all trainable parameters, before and after. Under SGD without weight decay
    it never rises. Otherwise `cost` never rises, and the noise alone may."""
    cost: tuple[Estimate, Estimate]
    """F, which the move minimises, before and after: step_size/4 Tr Sigma + weight_decay/2 |params|^2 for SGD, and
    sum sqrt(v) (step_size/2 + weight_decay params^2) for AdamW, with v the mean squared gradient."""
    curvature: tuple[Estimate, Estimate]
    """lambda_max of the Hessian, before and after; NaN where the loss cannot be differentiated twice."""
    change: float
    """Relative change of the outputs on the first batch."""
    sweeps: int
    """Largest number of sweeps over the symmetries of a component."""
    optimiser: str = "sgd"
    """The optimiser whose equilibrium it is, "sgd" or "adamw"."""
    _undo: list[tuple[Tensor, Tensor]] = field(repr=False, default_factory=list)

    @property
    def largest_step(self) -> tuple[Estimate, Estimate]:
        """2/lambda_max before and after. Gradient descent diverges above it; with noise smaller steps diverge too."""
        before, after = (_largest_step(curvature) for curvature in self.curvature)
        return before, after

    @property
    def imbalance(self) -> float:
        """max |log(s+/s-)| over all symmetries after the move."""
        return max((m.imbalance[1] for m in self.moved), default=0.0)

    @property
    def dead(self) -> int:
        """Number of directions without any noise on the batches. They are not moved."""
        return sum(m.dead for m in self.moved)

    @property
    def infinite(self) -> int:
        """Number of directions whose equilibrium is at infinity (LoRA at B = 0). They are not moved."""
        return sum(m.infinite for m in self.moved)

    def undo(self) -> None:
        """Restore the parameters and the state of the optimiser from before the move."""
        restore(self._undo)

    def __str__(self) -> str:
        rows = [
            ("noise power", self.noise),
            (COSTS[self.optimiser], self.cost),
            ("largest curvature", self.curvature),
            ("largest stable step", self.largest_step),
        ]
        lines = [f"{name}: {format_estimate(before)} -> {format_estimate(after)}" for name, (before, after) in rows]
        before = max((m.imbalance[0] for m in self.moved), default=0)
        lines.append(f"max |log(s+/s-)|: {before:.2g} -> {self.imbalance:.1g}; outputs changed by {self.change:.0e}")
        if self.infinite:
            lines.append(f"{self.infinite} directions have no finite equilibrium and were not moved")
        if self.dead:
            lines.append(f"{self.dead} directions have no noise and were not moved")
        if math.isnan(self.curvature[0].value):
            lines.append(
                "the curvature is not known: the loss cannot be differentiated twice, or the iteration did not converge"
            )
        lines += [f"not moved, {symmetry.kind}: {reason}" for symmetry, reason in self.skipped]
        return "\n".join(lines)


def _largest_step(curvature: Estimate) -> Estimate:
    if not curvature.value > 0:
        return Estimate(math.inf if curvature.value <= 0 else math.nan, math.nan, curvature.samples)
    error = 2 * curvature.standard_error / curvature.value**2
    return Estimate(2 / curvature.value, error, curvature.samples)


@torch.no_grad()
def restore(saved: list[tuple[Tensor, Tensor]]) -> None:
    """Copy saved values back into their tensors."""
    for tensor, before in saved:
        tensor.copy_(before)
