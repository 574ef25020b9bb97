"""The measurement of one symmetry at one step: charge, noise, flow, change, distance to equilibrium, relaxation."""

import functools
import math
from collections.abc import Mapping

import numpy as np

from undertow.torch._renamed import Renamed
from undertow.torch.census.axes import Symmetry
from undertow.torch.monitor.blocks import BlockEquilibria
from undertow.torch.monitor.entries import EntryMap
from undertow.torch.monitor.measure import NUMBERS, Measurement
from undertow.torch.monitor.settings import ADAM, SGD, UNKNOWN
from undertow.torch.monitor.steps import Plan
from undertow.torch.monitor.tensors import to_numpy

__all__ = ["COLUMNS", "EQUILIBRIA", "Reading", "Row", "read_step"]

Row = dict[str, int | float | str | None]
"""One symmetry at one step in numbers, by column; None where a number is not known, and the note says why."""
COLUMNS = (
    "step", "symmetry", "kind", "generators", "samples", "optimiser", "step_size", "charge", "noise_plus",
    "noise_minus", "noise_share", "flow", "change", "first_order", "second_order", "decay", "metric", "distance",
    "farthest", "relaxation", "slowest", "infinite", "dead", "memory", "eps_share", "regime", "note",
)  # fmt: skip
"""Columns of a row."""
EQUILIBRIA = {SGD: "SGD", ADAM: "AdamW", UNKNOWN: None}
"""The optimiser whose equilibrium is meant, by the kind of steps. Adam is AdamW without weight decay."""
CHANGE = ("first_order", "second_order", "decay", "metric")
DISTANCE = ("distance", "farthest", "relaxation", "slowest", "infinite", "dead")


class _Arrays:
    """Numbers by generator of all symmetries at one step, which are transferred when one of them is read."""

    def __init__(self, entries: EntryMap, plan: Plan, measurement: Measurement, amounts: Mapping[int, np.ndarray]):
        self.entries, self.plan, self.measurement, self.amounts = entries, plan, measurement, amounts

    @functools.cached_property
    def diagonal(self) -> dict[str, np.ndarray]:
        """The numbers of diagonal generators."""
        tensors = self.measurement.generators
        return dict(zip(tensors, to_numpy(list(tensors.values())), strict=True))

    @functools.cached_property
    def blocks(self) -> dict[int, dict[str, np.ndarray]]:
        """The matrices of GL symmetries under SGD, by their place in the census."""
        result: dict[int, dict[str, np.ndarray]] = {}
        for reading in self.measurement.blocks:
            arrays = to_numpy([reading.charge, *reading.sides, reading.gradient])
            for place, part in reading.parts(self.entries):
                names = ("charge", "noise_plus", "noise_minus", "gradient")
                result[place] = {name: x[part] for name, x in zip(names, arrays, strict=True)}
                result[place]["amount"] = self.amounts.get(place, np.zeros(0))
        return result

    def of(self, place: int, name: str) -> np.ndarray:
        """Return one number of the generators of a symmetry."""
        if self.plan.kinds[place] == SGD and place in self.blocks:
            return self.blocks[place][name]
        start, end = self.entries.starts[place : place + 2]
        return self.diagonal[name][start:end]


class Reading:
    """One symmetry at one step, generator by generator: (generators,), or (blocks, block, block) of a GL under SGD.

    Under Adam a GL is counted by its diagonal generators, and so it is under optimisers without a theory. The arrays
    are copied from the device of the model when they are read. `NoiseMonitor.last` holds the newest ones.

    >>> import torch
    >>> from undertow.torch import NoiseMonitor, census
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> with NoiseMonitor(net, census(net, torch.randn(6, 5), loss)) as monitor:
    ...     loss(net, torch.randn(16, 5)).backward()
    ...     optimizer.step()
    >>> reading = monitor.last[0]
    >>> print(reading.symmetry.kind, reading.charge.shape, (reading.noise_plus >= 0).all())
    rescaling (7,) True
    """

    relation = Renamed("symmetry")

    def __init__(self, symmetry: Symmetry, row: Row, place: int, arrays: _Arrays):
        self.symmetry = symmetry
        self.row = row
        """Totals over the generators."""
        self._place, self._arrays = place, arrays

    @property
    def charge(self) -> np.ndarray:
        """C = 1/2 sum_i A_i (h/h_i) W_i theta_i^2, with W the metric of the optimiser."""
        return self._arrays.of(self._place, "charge")

    @property
    def noise_plus(self) -> np.ndarray:
        """Covariance of the gradient of the step on the side plus, times the powers of the axes."""
        return self._noise("noise_plus")

    @property
    def noise_minus(self) -> np.ndarray:
        """Covariance of the gradient of the step on the side minus, times the powers of the axes."""
        return self._noise("noise_minus")

    def _noise(self, name: str) -> np.ndarray:
        noise = self._arrays.of(self._place, name)
        return np.full_like(noise, np.nan) if self.row[name] is None else noise

    @property
    def gradient(self) -> np.ndarray:
        """G'A G of the gradient G of the step."""
        return self._arrays.of(self._place, "gradient")

    @property
    def amount(self) -> np.ndarray:
        """Amount to the symmetry's own equilibrium; 0 where there is none, NaN where it is not known."""
        amount = self._arrays.of(self._place, "amount")
        return np.full_like(amount, np.nan) if self.row["distance"] is None else amount

    def __repr__(self) -> str:
        return f"Reading({self.symmetry.name!r}, step={self.row['step']})"


def read_step(
    entries: EntryMap,
    plan: Plan,
    measurement: Measurement,
    values: np.ndarray,
    *,
    step: int,
    samples: int,
    not_separable: Mapping[str, str],
) -> tuple[Reading, ...]:
    """Return the readings of all symmetries; `values` are those of `Measurement.flat` on the host.

    `not_separable` are the parameters whose noise is not known, with the reason.
    """
    numbers, matrices = measurement.split(values)
    tables = [dict(zip(NUMBERS, row, strict=True)) for row in numbers.tolist()]
    amounts: dict[int, np.ndarray] = {}
    for reading, own in zip(measurement.blocks, matrices, strict=True):
        equilibria = BlockEquilibria(reading, own)
        for place, part in reading.parts(entries):
            if plan.kinds[place] == SGD:
                found, amounts[place] = equilibria.numbers(part, moves=tables[place]["step_size"] > 0)
                tables[place] |= found
    arrays = _Arrays(entries, plan, measurement, amounts)
    readings = []
    for place, symmetry in enumerate(entries.census):
        table = tables[place]
        row: Row = dict.fromkeys(COLUMNS)
        row |= {
            "step": step,
            "symmetry": symmetry.name,
            "kind": symmetry.kind,
            "generators": symmetry.generators,
            "samples": samples,
        }
        _fill(row, symmetry, plan, place, table, bool(measurement.blocks))
        if reasons := [not_separable[name] for name in symmetry.parameters if name in not_separable]:
            _without_noise(row, reasons[0])
        readings.append(Reading(symmetry, row, place, arrays))
    return tuple(readings)


def _fill(row: Row, symmetry: Symmetry, plan: Plan, place: int, table: dict[str, float], whole: bool) -> None:
    """Add the numbers of a symmetry to its row, and notes on those that are not known."""
    kind, notes = plan.kinds[place], [plan.notes[place]]
    rules = [plan.rules[name] for name in symmetry.parameters]
    own = {axis.parameter for axis in symmetry.axes if axis.shift}
    row["optimiser"] = EQUILIBRIA[kind]
    known = ["charge", "noise_plus", "noise_minus", "noise_share"]
    if kind != UNKNOWN:
        known.append("step_size")
        moves = table["step_size"] > 0
        if all(rule.state is not None or not rule.momentum for rule in rules):
            known += CHANGE
        else:
            notes.append("the change is not known: `monitor.step()` has no access to the momentum buffer")
        if any(plan.rules[name].weight_decay > 0 for name in own):
            notes.append(
                "the distance is not known: weight decay acts on the parameter, but the layer uses 1 + parameter"
            )
        elif not moves and any(rule.weight_decay > 0 for rule in rules):
            notes.append("the step size is 0: the balance of noise and weight decay is not defined")
        else:
            known += ["distance", "farthest", "infinite", "dead"]
            known += ["relaxation", "slowest"] if table["timed"] else []
        if kind == SGD or symmetry.block == 1:
            known.append("flow")
        if kind == ADAM:
            known += ["memory", "eps_share"]
        if kind == SGD and symmetry.block > 1 and not whole:
            notes.append(f"only its {symmetry.size} scales were measured, because the optimiser has changed")
        if kind == ADAM and symmetry.block > 1:
            notes.append(
                f"AdamW conserves no charge of the generators that mix: the change is that of the plain charge, and "
                f"the distance that of its {symmetry.size} scales"
            )
    row |= {name: table[name] for name in known}
    for name in ("infinite", "dead"):
        row[name] = None if row[name] is None else int(table[name])
    if all(name in known for name in CHANGE):
        row["change"] = math.fsum(table[name] for name in CHANGE)
    broken = [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    if broken:
        row |= dict.fromkeys(broken)
        notes.append(f"not finite: {', '.join(broken)}")
    if kind != UNKNOWN and row["distance"] is not None and row["relaxation"] is None:
        notes.append(_without_time(row, table["step_size"] > 0))
    row["note"] = "; ".join(filter(None, notes))


def _without_noise(row: Row, reason: str) -> None:
    """Remove what follows from the noise of samples: under Adam flow and distance do not."""
    unknown = ["noise_plus", "noise_minus", "noise_share"]
    if row["optimiser"] == EQUILIBRIA[SGD]:
        unknown += ["flow", *DISTANCE]
    row |= dict.fromkeys(unknown)
    row["note"] = "; ".join(filter(None, [str(row["note"]), f"the noise is not known: {reason}"]))


def _without_time(row: Row, moves: bool) -> str:
    if not moves:
        return "there is no relaxation time: the step size is 0"
    return "there is no relaxation time: no generator has a finite equilibrium"
