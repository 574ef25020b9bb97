"""The result of `equilibrate`."""

import functools
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from undertow._table import ResultTable, html_of
from undertow.estimate import Estimate
from undertow.torch._renamed import Renamed
from undertow.torch.census.axes import Symmetry
from undertow.torch.census.folding import fold_symmetries
from undertow.torch.equilibrium.curvature import batches_needed, is_resolved
from undertow.torch.equilibrium.gradients import format_estimate

__all__ = ["COSTS", "Equilibrium", "MovedSymmetry", "format_resolved", "restore"]

COSTS = {"sgd": "noise plus weight penalty", "adamw": "standard deviations plus weight penalty"}
"""Optimisers with what their equilibrium minimises."""


@dataclass(frozen=True)
class MovedSymmetry:
    """One symmetry before and after the move to equilibrium.

    >>> import torch
    >>> from undertow.torch import census, equilibrate
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
    >>> batches = [torch.randn(8, 5) for _ in range(20)]
    >>> result = equilibrate(net, batches, loss, census(net, batches[0], loss), step_size=0.1, curvature_batches=0)
    >>> moved = result.moved[0]
    >>> print(moved.symmetry.kind, moved.amount.shape, moved.factor > 1, moved.imbalance[1] < moved.imbalance[0])
    rescaling (7,) True True
    """

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
        return float(np.exp(max(axis.power for axis in self.symmetry.axes) * np.abs(values).max(initial=0.0)))


@dataclass(frozen=True)
class Equilibrium:
    """Result of `equilibrate`: measurements before and after the move. `undo()` restores the model exactly.

    >>> import torch
    >>> from undertow.torch import census, equilibrate
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
    >>> batches = [torch.randn(8, 5) for _ in range(20)]
    >>> result = equilibrate(net, batches, loss, census(net, batches[0], loss), step_size=0.1, curvature_batches=0)
    >>> before, after = result.cost
    >>> print(after.value < before.value, result.imbalance < 1e-3, result.change < 1e-5)
    True True True
    >>> result.undo()
    """

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
    """lambda_max of the Hessian of the expected loss, before and after; NaN where the loss cannot be differentiated
    twice. The error covers the fit of the eigenvector to few batches. `print` shows no value where the error is above
    30 % of it."""
    change: float
    """Relative change of the outputs on the first batch."""
    sweeps: int
    """Largest number of sweeps over the symmetries of a component."""
    optimiser: str = "sgd"
    """The optimiser whose equilibrium it is, "sgd" or "adamw"."""
    dry_run: bool = False
    """Whether the model was moved only to measure, and restored."""
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
        """Restore the parameters and the state of the optimiser from before the move; a dry run has nothing to undo."""
        restore(self._undo)

    def table(self) -> ResultTable:
        """Return what is moved and by how much: a row for the same symmetry in every layer, the largest move first.

        >>> import torch
        >>> from undertow.torch import census, equilibrate
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
        >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
        >>> batches = [torch.randn(8, 5) for _ in range(20)]
        >>> symmetries = census(net, batches[0], loss)
        >>> result = equilibrate(net, batches, loss, symmetries, step_size=0.1, dry_run=True)
        >>> print(result.table().rows[0][:3], result.table().rows[0][-1])
        ('', 'rescaling', '7 scales') 0.weight[i, :], 0.bias against 2.weight[:, i]
        """
        moved = {id(one.symmetry): one for one in self.moved}
        folded = fold_symmetries([one.symmetry for one in self.moved])
        groups = [(row, [moved[id(symmetry)] for symmetry in row.symmetries]) for row in folded]
        rows = []
        for row, members in sorted(groups, key=lambda pair: -max(one.factor for one in pair[1])):
            first, count = row.symmetries[0], len(members)
            group = f"{first.size // first.block} x GL({first.block})" if first.block > 1 else f"{first.size} scales"
            before, after = (max(one.imbalance[k] for one in members) for k in range(2))
            still = sum(one.infinite + one.dead for one in members)
            cells = f"{max(one.factor for one in members):.3g}", f"{before:.2g}", f"{after:.1g}", str(still or "")
            rows.append((row.module, first.kind, group, f"x {count}" if count > 1 else "", *cells, row.where))
        header = ("module", "kind", "group", "layers", "factor", "imbalance", "after", "not moved", "parameters")
        count = f"{len(self.moved)} {'symmetry' if len(self.moved) == 1 else 'symmetries'}"
        title = f"{count} {'would be ' if self.dry_run else ''}moved"
        return ResultTable(title, header, tuple(rows), "llllrrrrl")

    def _repr_html_(self) -> str:
        return html_of([self.table(), ResultTable(str(self))])

    def __str__(self) -> str:
        rows = [("noise power", self.noise, format_estimate), (COSTS[self.optimiser], self.cost, format_estimate)]
        if not math.isnan(self.curvature[0].value):
            resolved = functools.partial(format_resolved, given=self.noise[0].samples)
            rows.append(("largest curvature", self.curvature, resolved))
        if all(map(is_resolved, self.curvature)):
            rows.append(("largest stable step", self.largest_step, format_estimate))
        lines = ["dry run: the model was not changed"] if self.dry_run else []
        lines += [f"{name}: {text(before)} -> {text(after)}" for name, (before, after), text in rows]
        before = max((m.imbalance[0] for m in self.moved), default=0)
        lines.append(f"max |log(s+/s-)|: {before:.2g} -> {self.imbalance:.1g}; outputs changed by {self.change:.0e}")
        if self.infinite:
            lines.append(f"{self.infinite} directions have no finite equilibrium and were not moved")
        if self.dead:
            lines.append(f"{self.dead} directions have no noise and were not moved")
        if math.isnan(self.curvature[0].value) and self.curvature[0].samples:
            lines.append(
                "the curvature is not known: the loss cannot be differentiated twice, or the iteration did not converge"
            )
        lines += [f"not moved, {symmetry.kind}: {reason}" for symmetry, reason in self.skipped]
        return "\n".join(lines)


def format_resolved(estimate: Estimate, given: int) -> str:
    """Return an estimate as text if its error is at most 30 % of it, and otherwise how many batches would do.

    `given` is the number of batches, of which the estimate may use a part.
    """
    if is_resolved(estimate):
        return format_estimate(estimate)
    if estimate.samples < 3:
        return f"{estimate.value:.3g} on {estimate.samples} batches, of unknown error"
    needed = batches_needed(estimate)
    enough = "its sign is not known" if needed is None else f"it takes {_rounded_up(needed)} or more"
    if estimate.samples >= given:
        return f"not resolved on {estimate.samples} batches ({enough})"
    why = ", so that the others were not used" if needed is not None and needed > given else ""
    return f"not resolved on {estimate.samples} of {given} batches ({enough}{why})"


def _rounded_up(count: int) -> int:
    """Return a number of batches rounded up to one digit."""
    unit = 10 ** (len(str(count)) - 1)
    return -(-count // unit) * unit


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
