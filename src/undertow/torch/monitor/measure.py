"""All symmetries of a census at one step, as tensors on the device of the model.

With step sizes h_i and weight decays lambda_i of each parameter and the metric W of the optimiser (1 for SGD), gradient
flow conserves C = 1/2 sum_i A_i (h/h_i) W_i theta_i^2, with h the largest of the h_i. Noise and decay change it by

    flow = h sum_i A_i (h_i/2 n_i - lambda_i W_i theta_i^2)      per step,

with n_i the variance of the gradient for SGD, and v_i/W_i for Adam, where v stands for the mean square of the gradient.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.balance import adam_times, diagonal_amounts
from undertow.torch.monitor.blocks import BlockProducts, BlockReading, block_products, read_blocks
from undertow.torch.monitor.columns import FIELDS, RawColumns
from undertow.torch.monitor.consistency import Comparison
from undertow.torch.monitor.entries import Entries, EntryMap
from undertow.torch.monitor.settings import ADAM, SGD
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.steps import ParameterSettings, Plan, Steps
from undertow.torch.monitor.tensors import on_device

__all__ = ["NUMBERS", "Gathered", "Measurement", "gather", "measure"]

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

    @functools.cached_property
    def plain(self) -> Tensor:
        """Which entries belong to a plain charge."""
        return self.steps.plain[self.steps.rows.symmetry]

    @functools.cached_property
    def weight(self) -> Tensor:
        """The terms of the charge, without factors."""
        return torch.where(self.plain, self.of["weight"], self.of["before"])

    @functools.cached_property
    def sides(self) -> tuple[Tensor, Tensor]:
        """|A_i| times the noise, of the entries of the side plus and of the side minus."""
        factor = self.steps.rows.factor
        return factor.clamp_min(0) * self.noise, (-factor).clamp_min(0) * self.noise


@dataclass(frozen=True)
class Gathered:
    """What a measurement needs of the parameters, their gradients and the state of the optimiser before the step."""

    columns: RawColumns
    settings: ParameterSettings
    counts: Tensor
    """Number of entries in each of the sums along axes."""
    blocks: tuple[BlockProducts | None, ...]
    """By block size; None where no symmetry of that size is stepped by SGD."""


@torch.no_grad()
def gather(entries: EntryMap, parameters: Mapping[str, nn.Parameter], plan: Plan, device: torch.device) -> Gathered:
    """Return what a measurement needs before the optimiser steps; `measure` may be called later, and in a thread."""
    columns = entries.columns.gather(parameters, plan.rules, plan.mixed(entries.census.symmetries))
    by_sgd = lambda block_map: any(plan.kinds[k] == SGD for k in block_map.symmetries)
    return Gathered(
        columns,
        ParameterSettings.of(entries.parameters, plan.rules, device),
        entries.counts(parameters, device),
        tuple(block_products(one, parameters, device) if by_sgd(one) else None for one in entries.blocks),
    )


@torch.no_grad()
def measure(
    entries: EntryMap,
    plan: Plan,
    gathered: Gathered,
    sums: Mapping[StatisticRequest, Tensor],
    comparison: Comparison,
) -> Measurement:
    """Return the measurement of a step; `sums` are the statistics of the samples."""
    device = comparison.samples.device
    step = _prepare(entries, plan, gathered, entries.sample_sums(sums, device), comparison)
    solved = _solve(entries, step)
    blocks = []
    for products, own in zip(gathered.blocks, entries.on(device)[1], strict=True):
        if products is not None:
            blocks.append(read_blocks(products, own, step.steps, sums, comparison.samples, comparison.scale))
    rows = step.steps.rows
    numbers = _totals(step) | solved.summary(entries, rows, len(plan.kinds))
    terms = rows.factor * step.steps.unit * step.weight, rows.factor * step.of["gradient"], *step.sides
    charge, gradient, plus, minus = rows.by_generator(torch.stack(terms)).unbind()
    generators = {
        "charge": charge / 2,
        "noise_plus": plus.clamp_min(0),
        "noise_minus": minus.clamp_min(0),
        "gradient": gradient,
        "amount": solved.amount,
    }
    return Measurement(torch.stack([numbers[name] for name in NUMBERS], 1), generators, tuple(blocks))


def _prepare(entries: EntryMap, plan: Plan, gathered: Gathered, recorded: Tensor, comparison: Comparison) -> _Step:
    """Return the entries of a step; `recorded` are the statistics of `EntryMap.sample_sums`."""
    device, symmetries, settings = recorded.device, entries.census.symmetries, gathered.settings
    rows, _ = entries.on(device)
    of = dict(zip(FIELDS, gathered.columns.sums()[:, rows.column], strict=True))
    kinds = torch.tensor([plan.plain(symmetries), [kind == ADAM for kind in plan.kinds]])
    plain, adaptive = on_device(kinds, device).unbind()
    steps = Steps(rows, settings, len(symmetries), plain)
    samples = comparison.samples
    second = recorded[rows.samples] * settings.unscale[rows.parameter] * comparison.scale**2
    noise = (second - of["gradient"] / samples) * samples / (samples - 1)
    drive = torch.where(adaptive[rows.symmetry], of["drive"], noise)
    return _Step(steps, of, noise, drive, adaptive, gathered.counts[rows.column])


def _totals(step: _Step) -> dict[str, Tensor]:
    """Return charge, noise, flow and the exact change of each symmetry, and the regime."""
    steps, of, rows = step.steps, step.of, step.steps.rows
    chosen = lambda name: torch.where(step.plain, of[f"plain_{name}"], steps.unit * of[name])
    metric = torch.where(step.plain, 0.0, steps.unit * (of["after"] - of["before"]))
    signed = [
        steps.unit * step.weight, steps.step / 2 * step.drive - steps.decay * of["pull"], chosen("first"),
        chosen("second"), chosen("decayed"), metric,
    ]  # fmt: skip
    sizes = torch.stack([of["gradient"], steps.eps * step.counts, of["inverse"]]) * rows.factor.abs()
    sums = steps.by_symmetry(torch.cat([torch.stack(signed) * rows.factor, sizes, torch.stack(step.sides)]))
    charge, flow, first, second, decay, changed, gradient, eps, inverse, *sides = sums.unbind()
    plus, minus = (side.clamp_min(0) for side in sides)
    return {
        "step_size": steps.largest(steps.by_parameter.eta[rows.parameter]),
        "charge": charge / 2,
        "noise_plus": plus,
        "noise_minus": minus,
        "noise_share": (plus + minus) / gradient,
        "flow": torch.where(steps.moves, steps.reference * flow, 0),
        "first_order": -first,
        "second_order": second / 2,
        "decay": decay / 2,
        "metric": changed / 2,
        "memory": 1 / steps.least(steps.forgetting),
        "eps_share": eps / inverse,
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
        starts = on_device(torch.tensor(entries.starts[:-1]), self.amount.device)
        finite = self.times.isfinite()
        counted = [self.amount.square(), torch.ones_like(self.amount), finite, self.infinite, self.dead]
        zero = self.amount.new_zeros(len(counted), symmetries)
        squares, sizes, timed, infinite, dead = zero.index_add_(1, rows.owner, torch.stack(counted)).unbind()
        extremes = torch.stack([self.amount.abs(), torch.where(finite, self.times, 0.0)])
        owners = rows.owner.expand(2, -1)
        farthest, slowest = extremes.new_zeros(2, symmetries).scatter_reduce_(1, owners, extremes, "amax").unbind()
        times = torch.where(finite, self.times, torch.inf)
        ordered, order = times.sort()
        ordered = ordered[rows.owner[order].sort(stable=True)[1]]  # by symmetry, then by time
        whole = timed.long()
        middle = lambda place: ordered[(starts + place).clamp_max(len(ordered) - 1)]
        return {
            "distance": (squares / sizes).sqrt(),
            "farthest": farthest,
            "relaxation": (middle((whole - 1).clamp_min(0) // 2) + middle(whole // 2)) / 2,
            "slowest": slowest,
            "timed": timed,
            "infinite": infinite,
            "dead": dead,
        }


def _solve(entries: EntryMap, step: _Step) -> _Solved:
    """Return the amounts and times of all diagonal generators."""
    steps, of, rows = step.steps, step.of, step.steps.rows
    adaptive, moves = step.adaptive[rows.owner], steps.moves[rows.owner]
    size, up = rows.factor.abs(), rows.factor > 0
    pushes = torch.stack([size * steps.step / 2 * step.drive, size * steps.decay * of["pull"]])
    powers = on_device(torch.tensor(entries.powers, dtype=torch.float64), size.device)
    places = rows.size * len(rows.owner) + rows.generator
    apart = torch.cat([torch.where(up, pushes, 0.0), torch.where(up, 0.0, pushes)])
    sums = size.new_zeros(4, len(powers) * len(rows.owner)).index_add_(1, places, apart)
    noise_up, decay_up, noise_down, decay_down = sums.clamp_min_(0).view(4, len(powers), -1).unbind()
    rising, falling = noise_up + decay_down, noise_down + decay_up
    exponent = torch.where(adaptive, 1.0, 2.0).double()
    amount = diagonal_amounts(rising, falling, powers, exponent)
    none_up, none_down = rising.sum(0) == 0, falling.sum(0) == 0
    moments = torch.stack([size * of["second"], size * steps.step**2 * of["drive"]])
    second, drive = rows.by_generator(moments).unbind()
    dead = (none_up & none_down) | ((second <= DEAD_RTOL * drive) & adaptive & moves)
    infinite = ~dead & (none_up | none_down)
    amount = torch.where(dead | infinite, 0.0, amount)
    # at the equilibrium
    moved = ((exponent * amount)[rows.generator] * rows.factor).exp()
    noise, decay = pushes.unbind()
    pushed = size * (noise / moved + decay * moved)
    follows = (1 - steps.eps * step.counts / of["inverse"]).clamp_min(0)
    terms = torch.stack([size.square() * of["after"] / steps.step * moved, pushed, follows * pushed])
    inertia, rate, following = rows.by_generator(terms).unbind()
    rate, following = rate / inertia, following / inertia
    forgetting = steps.least(steps.forgetting)[rows.owner]
    times = torch.where(adaptive, adam_times(rate, following, forgetting), 1 / (2 * rate))
    usable = ~dead & ~infinite & moves & (inertia > 0) & (rate > 0)
    return _Solved(amount, torch.where(usable, times, torch.inf), infinite, dead)
