"""Runs of AdamW or of SGD as one program that records all charges, their exact changes and the predicted flow.

The numbers are those of `undertow.torch.NoiseMonitor`, generator by generator and at every step: the charge
C = 1/2 sum_i A_i W_i theta_i^2, its exact change per step in four parts, and the flow
h sum_i A_i (h/2 n_i - lambda W_i theta_i^2). W and n are sqrt(v) + eps and v/W for AdamW, and 1 and the variance of the
gradient over the samples of the batch for SGD.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from studies.adamw_networks import Task
from studies.adamw_program import Sides, start
from studies.training import Params, Repeated, cross_entropy, gradients

__all__ = ["PARTS", "RECORDED", "ChargeProgram", "Setting"]

BETA, EPS = 0.9, 1e-8
"""Momentum of both optimisers, and eps of AdamW."""
PARTS = ("flow", "present_flow", "first_order", "second_order", "decay", "metric")
"""Sums over steps: the prediction of the monitor, the one with the squared gradient of the step for n_i W_i, and the
four parts of the exact change."""
RECORDED = ("charge", "size", *PARTS)
"""What a record holds; size is 1/2 sum_i |A_i| W_i theta_i^2."""


@dataclass(frozen=True)
class Setting:
    """Settings of one run."""

    seed: int
    adaptive: bool
    """AdamW; otherwise SGD with momentum."""
    step_size: float
    weight_decay: float
    b2: float = 0.0
    warm_up: int = 0
    """Steps over which the step size rises linearly."""


class ChargeProgram:
    """Runs of one network by one kind of optimiser. All parameters of a run are one row of a matrix."""

    def __init__(self, mine: Task, runs: list[Setting], sides: Sides, device: torch.device):
        (self.adaptive,) = {run.adaptive for run in runs}
        self.net, self.mine, self.runs = mine.nets[0].to(device), mine, runs
        params = start(mine.nets, runs)
        self.shapes = {name: p.shape[1:] for name, p in params.items()}
        self.flat = torch.cat([p.to(device).flatten(1) for p in params.values()], 1)
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        column = lambda values: torch.tensor(values, dtype=torch.float64, device=device)[:, None]
        self.size, self.decay = column([r.step_size for r in runs]), column([r.weight_decay for r in runs])
        self.b2, self.warm_up = column([r.b2 for r in runs]), column([float(r.warm_up) for r in runs])
        self.seed = torch.tensor([r.seed for r in runs], device=device)
        self.t = torch.zeros(1, dtype=torch.float64, device=device)
        self.losses = torch.zeros(len(runs), device=device)
        self.keys = sides.keys
        self.signed, self.both = ((sides.plus + sign * sides.minus).T.double() for sign in (-1, 1))
        self.sums = torch.zeros(len(PARTS), len(runs), len(sides.family), dtype=torch.float64, device=device)
        self.repeated = Repeated(self._step, device)

    def views(self, flat: Tensor) -> Params:
        """Return the rows of a matrix as parameters."""
        parts = flat.split([math.prod(shape) for shape in self.shapes.values()], 1)
        return {name: part.unflatten(1, shape) if len(shape) else part[:, 0]
                for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}  # fmt: skip

    def _total(self, entries: Tensor, weights: Tensor) -> Tensor:
        """Return the sums of the entries of a matrix over the sides of every generator, (runs, generators)."""
        values, columns = self.views(entries), []
        for name, axis, _ in self.keys:
            others = [k for k in range(1, values[name].ndim) if k != axis + 1]
            columns.append(values[name].sum(others, dtype=torch.float64) if others else values[name].double())
        return torch.cat(columns, -1) @ weights

    def inverse_metric(self) -> Tensor:
        """Return W for the present state of the optimiser; eps before the first step of AdamW."""
        if not self.adaptive:
            return torch.ones_like(self.flat)
        bias = 1 - self.b2 ** self.t.clamp_min(1)
        return (self.second / bias.to(self.flat)).sqrt() + EPS

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Return a new minibatch for every run, which runs of the same seed share."""
        shape = (1 + max(run.seed for run in self.runs), self.mine.samples)
        index = torch.randint(0, self.mine.indices, shape, device=self.flat.device)
        inputs, targets = self.mine.batch(index)
        return inputs.index_select(0, self.seed), targets.index_select(0, self.seed)

    def _gradient(self) -> tuple[Tensor, Tensor]:
        """Return the gradient of the batch, and its variance for SGD (0 for AdamW)."""
        inputs, targets = self._batch()
        if self.adaptive:
            losses, slopes = gradients(self.net, cross_entropy, self.views(self.flat), (inputs, targets))
            self.losses.add_(losses)
            return torch.cat([slopes[name].flatten(1) for name in self.shapes], 1), self.flat.new_zeros(())
        samples = self.mine.samples
        repeated = self.views(self.flat[:, None].expand(-1, samples, -1).flatten(0, 1))  # each sample is a run
        alone = inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None]
        losses, slopes = gradients(self.net, cross_entropy, repeated, alone)
        self.losses.add_(losses.unflatten(0, (-1, samples)).mean(1))
        each = torch.cat([slopes[name].flatten(1) for name in self.shapes], 1).unflatten(0, (-1, samples)) / samples
        whole = each.sum(1)
        return whole, (each - whole[:, None] / samples).square().sum(1) * samples / (samples - 1)

    def _step(self) -> None:
        g, noise = self._gradient()
        eta64 = self.size * ((self.t + 1) / self.warm_up.clamp_min(1)).clamp_max(1)
        eta, decay = eta64.to(g), self.decay.to(g)
        kept, before = 1 - eta * decay, self.inverse_metric()
        if self.adaptive:
            self.first.mul_(BETA).add_(g, alpha=1 - BETA)
            b2 = self.b2.to(g)
            self.second.mul_(b2).add_((1 - b2) * g * g)
            self.t.add_(1)
            after = self.inverse_metric()
            moved = eta * self.first / (1 - BETA**self.t).to(g) / after
            h, drive = eta64, (after - EPS).square() / after
        else:
            self.first.mul_(BETA).add_(g)
            self.t.add_(1)
            after, moved = before, eta * self.first
            h, drive = eta64 / (1 - BETA), noise
            self.first.add_(decay * self.flat)
        # W before the step does not depend on g; before the first step it is eps
        present = g.square() / torch.where(self.t > 1, before, after)
        square = self.flat.square()
        weight = self._total(after * square, self.signed)
        parts = {
            "flow": h * (h / 2 * self._total(drive, self.signed) - self.decay * weight),
            "present_flow": h * (h / 2 * self._total(present, self.signed) - self.decay * weight),
            "first_order": -self._total(after * kept * self.flat * moved, self.signed),
            "second_order": self._total(after * moved.square(), self.signed) / 2,
            "decay": ((1 - eta64 * self.decay) ** 2 - 1) * weight / 2,
            "metric": self._total((after - before) * square, self.signed) / 2,
        }
        self.sums.add_(torch.stack([parts[name] for name in PARTS]))
        self.flat.mul_(kept).sub_(moved)

    def run(self, steps: int) -> Tensor:
        """Train for a number of steps and return the mean loss over them, (runs,)."""
        self.losses.zero_()
        self.repeated.run(steps)
        return self.losses / steps

    def record(self) -> Tensor:
        """Return charges, their sizes and the sums of `PARTS` so far, (recorded, runs, generators)."""
        weight = self.inverse_metric() * self.flat.square()
        now = torch.stack([self._total(weight, self.signed), self._total(weight, self.both)]) / 2
        return torch.cat([now, self.sums])
