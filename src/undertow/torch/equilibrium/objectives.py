"""The cost that a move along the orbit minimises: noise power for SGD, standard deviations for AdamW, plus decay."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from undertow.estimate import Estimate
from undertow.torch.census.axes import Axis, Symmetry, unfold
from undertow.torch.equilibrium.amounts import Amount, general_amount
from undertow.torch.equilibrium.charge_moments import ChargeMoments, centred_noise, charge_moments, collect_moments

__all__ = ["AdamWObjective", "Objective", "SGDObjective"]


@dataclass(frozen=True)
class SGDObjective:
    """F = step_size/4 Tr Sigma + weight_decay/2 |params|^2."""

    step_size: float
    weight_decay: float
    optimiser = "sgd"

    def noise(self, stacks: Mapping[str, Tensor], symmetries: Sequence[Symmetry]) -> dict[str, Tensor]:
        """Return tensors (*shape, rows) that move like gradients, for `moments`: the centred gradients."""
        return centred_noise(stacks, symmetries)

    def moments(self, symmetry: Symmetry, values: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> ChargeMoments:
        """Return sums of variances and of squared weights."""
        return charge_moments(symmetry, values, noise)

    def amount(self, symmetry: Symmetry, moments: ChargeMoments) -> Amount:
        """Return the amount by the closed forms of `undertow.symmetry`."""
        return general_amount(symmetry, moments, self.step_size, self.weight_decay)

    def terms(self, stacks: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> np.ndarray:
        """Return zeros: the noise power is the whole cost but for the penalty."""
        return np.zeros(len(next(iter(stacks.values()))))

    def cost(self, noise: Estimate, squares: float, terms: np.ndarray) -> Estimate:
        """Return F."""
        value, error = noise.value * self.step_size / 4, noise.standard_error * self.step_size / 4
        return Estimate(value + self.weight_decay / 2 * squares, error, len(terms))


@dataclass(frozen=True)
class AdamWObjective:
    """F = sum_i sqrt(v_i) (step_size/2 + weight_decay theta_i^2), with v_i the mean square of gradient entry i.

    Along a rescaling sqrt(v) changes by exp(-s) on the side plus and theta by exp(s), so that F is a sum of
    exponentials of s, and its minimum is at exp(2 s) = (lambda a_minus + eta/2 b_plus)/(lambda a_plus + eta/2 b_minus),
    with b = sum sqrt(v) and a = sum sqrt(v) theta^2 on each side. An axis of power p changes by exp(p s); the minimum
    is then found by Newton's method. The small eps of Adam is left out.
    """

    step_size: float
    weight_decay: float
    second_moment: Callable[[str], Tensor] | None = None
    """Returns v of a parameter, from the optimiser; None takes the mean squares of the gradients of batches."""
    optimiser = "adamw"

    def _roots(self, name: str, stack: Tensor) -> Tensor:
        """Return sqrt(v) of a parameter in double precision."""
        if self.second_moment is None:
            return stack.double().square().mean(0).sqrt()
        return self.second_moment(name).double().reshape(stack.shape[1:]).sqrt()

    def noise(self, stacks: Mapping[str, Tensor], symmetries: Sequence[Symmetry]) -> dict[str, Tensor]:
        """Return sqrt(v) as one row."""
        return {name: self._roots(name, stack)[..., None] for name, stack in stacks.items()}

    def moments(self, symmetry: Symmetry, values: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> ChargeMoments:
        """Return b and a of both sides, (generators,)."""
        total = lambda tensor, axis: unfold(tensor, axis).sum(dim=(1, 2)).numpy(force=True)

        def weight(axis: Axis) -> np.ndarray:
            squares = (values[axis.parameter] + axis.shift).square()
            return total(noise[axis.parameter] * squares[..., None], axis)

        return collect_moments(symmetry, lambda axis: total(noise[axis.parameter], axis), weight)

    def amount(self, symmetry: Symmetry, moments: ChargeMoments) -> Amount:
        """Return the amount: twice that of SGD for the same moments, because b changes by exp(-s), not by exp(-2 s)."""
        half = general_amount(symmetry, moments, self.step_size, self.weight_decay)
        return half._replace(amount=2 * half.amount, power=2)

    def terms(self, stacks: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> np.ndarray:
        """Return sum_i (step_size/2 + weight_decay theta_i^2) g_i^2/sqrt(v_i) of each batch, whose mean is F."""
        total = np.zeros(len(next(iter(stacks.values()))))
        for name, stack in stacks.items():
            weight = self.step_size / 2 + self.weight_decay * values[name].square()
            roots = self._roots(name, stack)
            if self.second_moment is not None:
                total += float((weight * roots).sum())
                continue
            squares = stack.double().square() / torch.where(roots > 0, roots, torch.ones_like(roots))
            total += (squares * weight).flatten(1).sum(1).numpy(force=True)
        return total

    def cost(self, noise: Estimate, squares: float, terms: np.ndarray) -> Estimate:
        """Return F. The standard error is that of a root: half of that of the mean; NaN for v of an optimiser."""
        count = len(terms)
        known = self.second_moment is None and count > 2
        error = float(terms.std(ddof=1)) / count**0.5 / 2 if known else float("nan")
        return Estimate(float(terms.mean()), error, count)


Objective = SGDObjective | AdamWObjective
"""The cost of an optimiser, whose least value on the orbit is the equilibrium. Both kinds have the same methods."""
