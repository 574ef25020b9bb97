"""All symmetries of a census at one step, as tensors on the device of the model.

With step sizes h_i and weight decays lambda_i of each parameter and the metric W of the optimiser (1 for SGD), gradient
flow conserves C = 1/2 sum_i A_i (h/h_i) W_i theta_i^2, with h the largest of the h_i. Noise and decay change it by

    flow = h sum_i A_i (h_i/2 n_i - lambda_i W_i theta_i^2)      per step,

with n_i the variance of the gradient for SGD, and v_i/W_i for Adam, where v stands for the mean square of the gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.balance import adam_times, diagonal_amounts
from undertow.torch.monitor.blocks import BlockReading, read_blocks
from undertow.torch.monitor.columns import FIELDS
from undertow.torch.monitor.consistency import Comparison
from undertow.torch.monitor.entries import Entries, EntryMap
from undertow.torch.monitor.settings import ADAM, SGD
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.steps import ParameterSettings, Plan, Steps
from undertow.torch.monitor.tensors import on_device

__all__ = ["NUMBERS", "Measurement", "measure"]

NUMBERS = (
    "step_size", "charge", "noise_plus", "noise_minus", "noise_share", "flow", "first_order", "second_order", "decay",
    "metric", "distance", "farthest", "relaxation", "slowest", "timed", "infinite", "dead", "memory", "eps_share",
)  # fmt: skip
"""Numbers of each symmetry; `timed` counts generators with a relaxation time. Those of the equilibrium are of diagonal
generators; a GL under SGD has others (`BlockEquilibria`)."""
DEAD_RTOL = 1e-12
"""A generator of Adam is dead if m^2 is smaller than this, relative to v: no gradient in the last 130 steps."""


@dataclass(frozen=True)
class Measurement:
    """One step in numbers by symmetry, and in tensors by generator."""

    numbers: Tensor
    """(symmetries, `NUMBERS`)."""
    generators: dict[str, Tensor]
    """charge, noise_plus, noise_minus, gradient and amount by generator."""
    blocks: tuple[BlockReading, ...]
    """The GL symmetries under SGD."""

    def flat(self) -> Tensor:
        """Return what `read_step` needs on the host as one tensor: the numbers, then the matrices of the blocks."""
        matrices = [x.flatten() for reading in self.blocks for x in reading.matrices]
        return torch.cat([self.numbers.flatten(), *matrices])

    def split(self, values: np.ndarray) -> tuple[np.ndarray, list[list[np.ndarray]]]:
        """Return the numbers of `flat` as a table by symmetry, and the matrices by block size."""
        numbers, at = values[: self.numbers.numel()].reshape(self.numbers.shape), self.numbers.numel()
        matrices: list[list[np.ndarray]] = []
        for reading in self.blocks:
            matrices.append([])
            for x in reading.matrices:
                matrices[-1].append(values[at : at + x.numel()].reshape(x.shape))
                at += x.numel()
        return numbers, matrices


@dataclass(frozen=True)
class _Step:
    """The entries of one step: sums along axes, noise, and what the optimiser does with them."""

    steps: Steps
    of: dict[str, Tensor]
    """The columns of `FIELDS`, (entries,) each."""
    noise: Tensor
    """Variances of the gradient."""
    drive: Tensor
    """n: the noise for SGD, v/W for Adam."""
    adaptive: Tensor
    """Which symmetries are stepped by Adam."""
    counts: Tensor
    """Numbers of entries in the sums along axes."""

    @property
    def plain(self) -> Tensor:
        """Which entries belong to a plain charge."""
        return self.steps.plain[self.steps.rows.symmetry]

    @property
    def weight(self) -> Tensor:
        """The terms of the charge, without factors."""
        return torch.where(self.plain, self.of["weight"], self.of["before"])

    def total(self, values: Tensor) -> Tensor:
        """Return sum_i A_i x_i for each symmetry."""
        return self.steps.by_symmetry(self.steps.rows.factor * values)

    def size(self, values: Tensor) -> Tensor:
        """Return sum_i |A_i| x_i for each symmetry."""
        return self.steps.by_symmetry(self.steps.rows.factor.abs() * values)

    def sides(self) -> tuple[Tensor, Tensor]:
        """Return |A_i| times the noise, of the entries of the side plus and of the side minus."""
        factor = self.steps.rows.factor
        return factor.clamp_min(0) * self.noise, (-factor).clamp_min(0) * self.noise


@torch.no_grad()
def measure(
    entries: EntryMap,
    parameters: Mapping[str, nn.Parameter],
    plan: Plan,
    sums: Mapping[StatisticRequest, Tensor],
    recorded: Tensor,
    comparison: Comparison,
) -> Measurement:
    """Return the measurement of a step, from its gradients and the state of the optimiser before it.

    `sums` are the statistics of the samples, and `recorded` the same as `EntryMap.sample_sums` returns them.
    """
    step = _prepare(entries, parameters, plan, recorded, comparison)
    solved = _solve(entries, step)
    blocks = []
    for block_map, own in zip(entries.blocks, entries.on(recorded.device)[1], strict=True):
        if any(plan.kinds[k] == SGD for k in block_map.symmetries):
            moments = comparison.samples, comparison.scale
            blocks.append(read_blocks(block_map, own, step.steps, parameters, sums, *moments))
    rows = step.steps.rows
    numbers = _totals(step) | solved.summary(entries, rows, len(plan.kinds))
    plus, minus = step.sides()
    generators = {
        "charge": rows.by_generator(rows.factor * step.steps.unit * step.weight) / 2,
        "noise_plus": rows.by_generator(plus).clamp_min(0),
        "noise_minus": rows.by_generator(minus).clamp_min(0),
        "gradient": rows.by_generator(rows.factor * step.of["gradient"]),
        "amount": solved.amount,
    }
    return Measurement(torch.stack([numbers[name] for name in NUMBERS], 1), generators, tuple(blocks))


def _prepare(
    entries: EntryMap,
    parameters: Mapping[str, nn.Parameter],
    plan: Plan,
    recorded: Tensor,
    comparison: Comparison,
) -> _Step:
    """Return the entries of a step."""
    device, symmetries = recorded.device, entries.census.symmetries
    rows, _ = entries.on(device)
    columns = entries.columns.sums(parameters, plan.rules, plan.mixed(symmetries))
    of = dict(zip(FIELDS, columns[:, rows.column], strict=True))
    settings = ParameterSettings.of(entries.parameters, plan.rules, device)
    steps = Steps(rows, settings, len(symmetries), on_device(torch.tensor(plan.plain(symmetries)), device))
    samples = comparison.samples
    second = recorded[rows.samples] * settings.unscale[rows.parameter] * comparison.scale**2
    noise = (second - of["gradient"] / samples) * samples / (samples - 1)
    adaptive = on_device(torch.tensor([kind == ADAM for kind in plan.kinds]), device)
    drive = torch.where(adaptive[rows.symmetry], of["drive"], noise)
    return _Step(steps, of, noise, drive, adaptive, entries.counts(parameters, device)[rows.column])


def _totals(step: _Step) -> dict[str, Tensor]:
    """Return charge, noise, flow and the exact change of each symmetry, and the regime."""
    steps, of, rows = step.steps, step.of, step.steps.rows
    plus, minus = (steps.by_symmetry(side).clamp_min(0) for side in step.sides())
    flow = steps.reference * step.total(steps.step / 2 * step.drive - steps.decay * of["pull"])
    chosen = lambda name: torch.where(step.plain, of[f"plain_{name}"], steps.unit * of[name])
    metric = torch.where(step.plain, 0.0, steps.unit * (of["after"] - of["before"]))
    return {
        "step_size": steps.largest(steps.by_parameter.eta[rows.parameter]),
        "charge": step.total(steps.unit * step.weight) / 2,
        "noise_plus": plus,
        "noise_minus": minus,
        "noise_share": (plus + minus) / step.size(of["gradient"]),
        "flow": torch.where(steps.moves, flow, 0),
        "first_order": -step.total(chosen("first")),
        "second_order": step.total(chosen("second")) / 2,
        "decay": step.total(chosen("decayed")) / 2,
        "metric": step.total(metric) / 2,
        "memory": 1 / steps.least(steps.forgetting),
        "eps_share": step.size(steps.eps * step.counts) / step.size(of["inverse"]),
    }


@dataclass
class _Solved:
    """Amounts and relaxation times by generator, with those that have none."""

    amount: Tensor
    times: Tensor
    infinite: Tensor
    dead: Tensor

    def summary(self, entries: EntryMap, rows: Entries, symmetries: int) -> dict[str, Tensor]:
        """Return root mean squares, extremes, medians and counts by symmetry."""
        zero = self.amount.new_zeros(symmetries)
        count = lambda values: zero.index_add(0, rows.owner, values.double())
        starts = on_device(torch.tensor(entries.starts[:-1]), zero.device)
        finite = self.times.isfinite()
        times = torch.where(finite, self.times, torch.inf)
        ordered, order = times.sort()
        ordered = ordered[rows.owner[order].sort(stable=True)[1]]  # by symmetry, then by time
        timed = count(finite).long()
        middle = lambda place: ordered[(starts + place).clamp_max(len(ordered) - 1)]
        return {
            "distance": (count(self.amount.square()) / count(torch.ones_like(self.amount))).sqrt(),
            "farthest": zero.scatter_reduce(0, rows.owner, self.amount.abs(), "amax"),
            "relaxation": (middle((timed - 1).clamp_min(0) // 2) + middle(timed // 2)) / 2,
            "slowest": zero.scatter_reduce(0, rows.owner, torch.where(finite, self.times, 0.0), "amax"),
            "timed": timed.double(),
            "infinite": count(self.infinite),
            "dead": count(self.dead),
        }


def _solve(entries: EntryMap, step: _Step) -> _Solved:
    """Return the amounts and times of all diagonal generators."""
    steps, of, drive, adaptive = step.steps, step.of, step.drive, step.adaptive
    rows = steps.rows
    size, up = rows.factor.abs(), rows.factor > 0
    noise, decay = size * steps.step / 2 * drive, size * steps.decay * of["pull"]
    powers = on_device(torch.tensor(entries.powers, dtype=torch.float64), size.device)
    places = rows.size * len(rows.owner) + rows.generator
    zero = size.new_zeros(len(powers) * len(rows.owner))
    by_power = lambda values: zero.index_add(0, places, values).reshape(len(powers), -1).clamp_min(0)
    apart = lambda values, side: by_power(torch.where(up == side, values, 0.0))
    rising, falling = apart(noise, True) + apart(decay, False), apart(noise, False) + apart(decay, True)
    exponent = torch.where(adaptive[rows.owner], 1.0, 2.0).double()
    amount = diagonal_amounts(rising, falling, powers, exponent)
    pushed = rising.sum(0), falling.sum(0)
    dead = (pushed[0] == 0) & (pushed[1] == 0)
    quiet = rows.by_generator(size * of["second"]) <= DEAD_RTOL * rows.by_generator(size * steps.step**2 * of["drive"])
    dead = dead | (quiet & adaptive[rows.owner] & steps.moves[rows.owner])
    infinite = ~dead & ((pushed[0] == 0) | (pushed[1] == 0))
    amount = torch.where(dead | infinite, 0.0, amount)
    # at the equilibrium
    moved = (exponent[rows.generator] * rows.factor * amount[rows.generator]).exp()
    parts = torch.stack([size * noise / moved, size * decay * moved])
    inertia = rows.by_generator(size.square() * of["after"] / steps.step * moved)
    rate = rows.by_generator(parts.sum(0)) / inertia
    follows = (1 - steps.eps * step.counts / of["inverse"]).clamp_min(0)
    following = rows.by_generator(follows * parts.sum(0)) / inertia
    forgetting = steps.least(steps.forgetting)[rows.owner]
    times = torch.where(adaptive[rows.owner], adam_times(rate, following, forgetting), 1 / (2 * rate))
    usable = ~dead & ~infinite & steps.moves[rows.owner] & (inertia > 0) & (rate > 0)
    return _Solved(amount, torch.where(usable, times, torch.inf), infinite, dead)
