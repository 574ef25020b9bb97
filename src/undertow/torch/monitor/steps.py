"""The steps of an optimiser as arrays: step sizes, decays and the unit of the charges, entry by entry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from undertow.torch.census.axes import Symmetry
from undertow.torch.monitor.arrays import Array, add_by_index, largest_by_index, least_by_index, namespace, number_table
from undertow.torch.monitor.entries import Entries
from undertow.torch.monitor.settings import ADAM, SGD, StepRule, common_rule

__all__ = ["ParameterSettings", "Plan", "Steps", "plan_step"]


@dataclass(frozen=True)
class Plan:
    """What is computed for each symmetry: the kind of steps, whether they are counted by scales, and why not more."""

    kinds: tuple[str, ...]
    notes: tuple[str, ...]
    rules: Mapping[str, StepRule]

    def plain(self, symmetries: Sequence[Symmetry]) -> list[bool]:
        """Return for which symmetries the charge is the plain one: those of unknown steps, and GL under Adam."""
        return [
            kind not in (SGD, ADAM) or (kind == ADAM and symmetry.block > 1)
            for kind, symmetry in zip(self.kinds, symmetries, strict=True)
        ]

    def mixed(self, symmetries: Sequence[Symmetry]) -> frozenset[str]:
        """Return the parameters of GL symmetries under Adam."""
        pairs = zip(symmetries, self.kinds, strict=True)
        return frozenset(name for s, kind in pairs if kind == ADAM and s.block > 1 for name in s.parameters)


def plan_step(symmetries: Sequence[Symmetry], rules: Mapping[str, StepRule]) -> Plan:
    """Return what can be computed for each symmetry under these steps of its parameters."""
    pairs = [common_rule([rules[name] for name in symmetry.parameters]) for symmetry in symmetries]
    return Plan(tuple(kind for kind, _ in pairs), tuple(note for _, note in pairs), rules)


@dataclass(frozen=True)
class ParameterSettings:
    """Settings by parameter, as arrays (parameters,)."""

    eta: Array
    step: Array
    """Effective step sizes h."""
    decay: Array
    forgetting: Array
    eps: Array
    unscale: Array
    """Factor of squared gradients of samples, under a gradient scaler that a fused optimiser applies itself."""

    @staticmethod
    def of(names: Sequence[str], rules: Mapping[str, StepRule], device: torch.device) -> "ParameterSettings":
        own = [rules[name] for name in names]
        scales = {id(r.grad_scale): r.grad_scale for r in own if r.grad_scale is not None}
        unscale = {key: scale.detach().double().reshape(()) ** -2 for key, scale in scales.items()}
        rows = [
            [r.step_size for r in own],
            [r.effective_step for r in own],
            [r.weight_decay for r in own],
            [1 - r.betas[1] if r.kind == ADAM else 1.0 for r in own],
            [r.eps for r in own],
            [unscale.get(id(r.grad_scale), 1.0) for r in own],
        ]
        return ParameterSettings(*number_table(rows, device))


class Steps:
    """Step sizes and decays of the entries, and the unit of the charges."""

    def __init__(self, rows: Entries, settings: ParameterSettings, symmetries: int, plain: Array):
        self.rows, self.symmetries, self.plain = rows, symmetries, plain
        where, step = namespace(plain).where, settings.step[rows.parameter]
        largest = self.largest(step)
        self.moves = largest > 0
        self.reference = where(self.moves, largest, 1.0)
        # without weight decay the step size does not matter: a first step of size 0 has a distance too
        self.step = where(self.moves[rows.symmetry], step, 1.0)
        self.unit = where(plain[rows.symmetry], 1.0, self.reference[rows.symmetry] / self.step)
        self.decay = settings.decay[rows.parameter]
        self.eps = settings.eps[rows.parameter]
        self.forgetting = settings.forgetting[rows.parameter]
        self.by_parameter = settings

    def by_symmetry(self, values: Array) -> Array:
        """Return the sums of (..., entries) over the entries of each symmetry."""
        return add_by_index(values, self.rows.symmetry, self.symmetries)

    def largest(self, values: Array) -> Array:
        """Return the largest of nonnegative values of the entries of each symmetry."""
        return largest_by_index(values, self.rows.symmetry, self.symmetries)

    def least(self, values: Array) -> Array:
        """Return the least of the values of the entries of each symmetry."""
        return least_by_index(values, self.rows.symmetry, self.symmetries)
