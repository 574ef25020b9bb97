"""All symmetries of a census at one step, as arrays for the device of the model.

With step sizes h_i and weight decays lambda_i of each parameter and the metric W of the optimiser (1 for SGD), gradient
flow conserves C = 1/2 sum_i A_i (h/h_i) W_i theta_i^2, with h the largest of the h_i. Noise and decay change it by

    flow = h sum_i A_i (h_i/2 n_i - lambda_i W_i theta_i^2)      per step,

with n_i the variance of the gradient for SGD, and v_i/W_i for Adam, where v stands for the mean square of the gradient.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.arrays import (
    Array,
    add_by_index,
    array_on,
    largest_by_index,
    namespace,
    nonnegative,
    stacked,
)
from undertow.torch.monitor.balance import adam_times, diagonal_amounts
from undertow.torch.monitor.blocks import BlockProducts, BlockReading, block_products, read_blocks
from undertow.torch.monitor.columns import FIELDS, RawColumns
from undertow.torch.monitor.consistency import Comparison
from undertow.torch.monitor.entries import Entries, EntryMap
from undertow.torch.monitor.settings import ADAM, SGD
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.steps import ParameterSettings, Plan, Steps

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
    """One step in numbers by symmetry, and in arrays by generator."""

    numbers: Array
    """(symmetries, `NUMBERS`)."""
    generators: dict[str, Array]
    """charge, noise_plus, noise_minus, gradient and amount by generator."""
    blocks: tuple[BlockReading, ...]
    """The GL symmetries under SGD."""

    def flat(self) -> list[Array]:
        """Return what `read_step` needs on the host: the numbers, then the matrices of the blocks."""
        return [self.numbers, *(x for reading in self.blocks for x in reading.matrices)]

    def split(self, values: np.ndarray) -> tuple[np.ndarray, list[list[np.ndarray]]]:
        """Return the numbers of `flat` as a table by symmetry, and the matrices by block size."""
        at = math.prod(self.numbers.shape)
        numbers = values[:at].reshape(self.numbers.shape)
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
    of: dict[str, Array]
    """The columns of `FIELDS`, (entries,) each."""
    noise: Array
    """Variances of the gradient."""
    drive: Array
    """n: the noise for SGD, v/W for Adam."""
    adaptive: Array
    """Which symmetries are stepped by Adam."""
    by_adam: bool
    """Whether any symmetry is."""
    counts: Array
    """Numbers of entries in the sums along axes."""

    @functools.cached_property
    def plain(self) -> Array:
        """Which entries belong to a plain charge."""
        return self.steps.plain[self.steps.rows.symmetry]

    @functools.cached_property
    def weight(self) -> Array:
        """The terms of the charge, without factors."""
        return namespace(self.plain).where(self.plain, self.of["weight"], self.of["before"])

    @functools.cached_property
    def sides(self) -> tuple[Array, Array]:
        """|A_i| times the noise, of the entries of the side plus and of the side minus."""
        factor = self.steps.rows.factor
        return nonnegative(factor) * self.noise, nonnegative(-factor) * self.noise


@dataclass(frozen=True)
class Gathered:
    """What a measurement needs of the parameters, their gradients and the state of the optimiser before the step."""

    columns: RawColumns
    settings: ParameterSettings
    counts: Array
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
    device = comparison.device
    with np.errstate(all="ignore"):  # what is not finite is not known, as the notes of the rows say
        step = _prepare(entries, plan, gathered, entries.sample_sums(sums, device), comparison)
        solved = _solve(entries, step, device)
        rows = step.steps.rows
        numbers = _totals(step) | solved.summary(entries, rows, device)
        terms = rows.factor * step.steps.unit * step.weight, rows.factor * step.of["gradient"], *step.sides
        charge, gradient, plus, minus = rows.by_generator(stacked(terms))
    blocks = []
    for products, own in zip(gathered.blocks, entries.on(device)[1], strict=True):
        if products is not None:
            blocks.append(read_blocks(products, own, step.steps, sums, comparison.samples, comparison.scale))
    generators = {
        "charge": charge / 2,
        "noise_plus": nonnegative(plus),
        "noise_minus": nonnegative(minus),
        "gradient": gradient,
        "amount": solved.amount,
    }
    return Measurement(stacked([numbers[name] for name in NUMBERS]).T, generators, tuple(blocks))


def _prepare(entries: EntryMap, plan: Plan, gathered: Gathered, recorded: Array, comparison: Comparison) -> _Step:
    """Return the entries of a step; `recorded` are the statistics of `EntryMap.sample_sums`."""
    device, symmetries, settings = comparison.device, entries.census.symmetries, gathered.settings
    rows, _ = entries.on(device)
    of = dict(zip(FIELDS, gathered.columns.sums()[:, rows.column], strict=True))
    plain, adaptive = array_on([plan.plain(symmetries), [kind == ADAM for kind in plan.kinds]], device)
    steps = Steps(rows, settings, len(symmetries), plain)
    samples = comparison.samples
    second = recorded[rows.samples] * settings.unscale[rows.parameter] * comparison.scale**2
    noise = (second - of["gradient"] / samples) * samples / (samples - 1)
    by_adam = ADAM in plan.kinds
    drive = namespace(noise).where(adaptive[rows.symmetry], of["drive"], noise) if by_adam else noise
    return _Step(steps, of, noise, drive, adaptive, by_adam, gathered.counts[rows.column])


def _totals(step: _Step) -> dict[str, Array]:
    """Return charge, noise, flow and the exact change of each symmetry, and the regime."""
    steps, of, rows, xp = step.steps, step.of, step.steps.rows, namespace(step.noise)
    chosen = lambda name: xp.where(step.plain, of[f"plain_{name}"], steps.unit * of[name])
    signed = [
        steps.unit * step.weight, steps.step / 2 * step.drive - steps.decay * of["pull"], chosen("first"),
        chosen("second"), chosen("decayed"),
    ]  # fmt: skip
    sums = steps.by_symmetry(
        stacked([*(x * rows.factor for x in signed), abs(rows.factor) * of["gradient"], *step.sides])
    )
    charge, flow, first, second, decay, gradient, *sides = sums
    plus, minus = map(nonnegative, sides)
    return {
        "step_size": steps.largest(steps.by_parameter.eta[rows.parameter]),
        "charge": charge / 2,
        "noise_plus": plus,
        "noise_minus": minus,
        "noise_share": (plus + minus) / gradient,
        "flow": xp.where(steps.moves, steps.reference * flow, 0.0),
        "first_order": -first,
        "second_order": second / 2,
        "decay": decay / 2,
        **_adam_totals(step),
    }


def _adam_totals(step: _Step) -> dict[str, Array]:
    """Return what only Adam has: the change by the metric, and the regime."""
    steps, of, rows, xp = step.steps, step.of, step.steps.rows, namespace(step.noise)
    if not step.by_adam:
        return dict.fromkeys(("metric", "memory", "eps_share"), xp.zeros_like(steps.reference))
    metric = rows.factor * xp.where(step.plain, 0.0, steps.unit * (of["after"] - of["before"]))
    sizes = abs(rows.factor) * stacked([steps.eps * step.counts, of["inverse"]])
    changed, eps, inverse = steps.by_symmetry(stacked([metric, *sizes]))
    return {"metric": changed / 2, "memory": 1 / steps.least(steps.forgetting), "eps_share": eps / inverse}


@dataclass
class _Solved:
    """Amounts and relaxation times by generator, with those that have none."""

    amount: Array
    times: Array
    infinite: Array
    dead: Array

    def summary(self, entries: EntryMap, rows: Entries, device: torch.device) -> dict[str, Array]:
        """Return root mean squares, extremes, medians and counts by symmetry."""
        xp, count = namespace(self.amount), len(entries.starts) - 1
        starts = array_on(entries.starts[:-1], device)
        finite = xp.isfinite(self.times)
        counted = stacked(
            [self.amount**2, xp.ones_like(self.amount), finite + 0.0, self.infinite + 0.0, self.dead + 0.0]
        )
        squares, sizes, timed, infinite, dead = add_by_index(counted, rows.owner, count)
        extremes = stacked([abs(self.amount), xp.where(finite, self.times, 0.0)])
        farthest, slowest = largest_by_index(extremes, rows.owner, count)
        order = xp.argsort(xp.where(finite, self.times, torch.inf))
        order = order[xp.argsort(rows.owner[order], stable=True)]  # by symmetry, then by time
        ordered, whole = self.times[order], timed.astype(int) if xp is np else timed.long()
        middle = lambda place: ordered[(starts + place).clip(max=len(ordered) - 1)]
        return {
            "distance": xp.sqrt(squares / sizes),
            "farthest": farthest,
            "relaxation": (middle(nonnegative(whole - 1) // 2) + middle(whole // 2)) / 2,
            "slowest": slowest,
            "timed": timed,
            "infinite": infinite,
            "dead": dead,
        }


def _solve(entries: EntryMap, step: _Step, device: torch.device) -> _Solved:
    """Return the amounts and times of all diagonal generators."""
    steps, of, rows, xp = step.steps, step.of, step.steps.rows, namespace(step.noise)
    adaptive, moves, generators = step.adaptive[rows.owner], steps.moves[rows.owner], len(rows.owner)
    size, up = abs(rows.factor), rows.factor > 0
    pushes = stacked([size * steps.step / 2 * step.drive, size * steps.decay * of["pull"]])
    powers = array_on([float(power) for power in entries.powers], device)
    places = rows.size * generators + rows.generator
    apart = xp.concatenate([xp.where(up, pushes, 0.0), xp.where(up, 0.0, pushes)])
    sums = nonnegative(add_by_index(apart, places, len(powers) * generators))
    noise_up, decay_up, noise_down, decay_down = sums.reshape(4, len(powers), -1)
    rising, falling = noise_up + decay_down, noise_down + decay_up
    exponent = 2.0 - adaptive * 1.0
    amount = diagonal_amounts(rising, falling, powers, exponent)
    none_up, none_down = rising.sum(0) == 0, falling.sum(0) == 0
    dead = none_up & none_down
    if step.by_adam:
        second, drive = rows.by_generator(stacked([size * of["second"], size * steps.step**2 * of["drive"]]))
        dead = dead | ((second <= DEAD_RTOL * drive) & adaptive & moves)
    infinite = ~dead & (none_up | none_down)
    amount = xp.where(dead | infinite, 0.0, amount)
    # at the equilibrium
    moved = xp.exp((exponent * amount)[rows.generator] * rows.factor)
    noise, decay = pushes
    pushed = size * (noise / moved + decay * moved)
    inertia, rate = rows.by_generator(stacked([size**2 * of["after"] / steps.step * moved, pushed]))
    rate = rate / inertia
    times = 1 / (2 * rate)
    if step.by_adam:
        follows = nonnegative(1 - steps.eps * step.counts / of["inverse"])
        forgetting = steps.least(steps.forgetting)[rows.owner]
        following = rows.by_generator(follows * pushed) / inertia
        times = xp.where(adaptive, adam_times(rate, following, forgetting), times)
    usable = ~dead & ~infinite & moves & (inertia > 0) & (rate > 0)
    return _Solved(amount, xp.where(usable, times, torch.inf), infinite, dead)
