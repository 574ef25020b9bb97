"""The symmetries of a census at the steps of an optimiser: what has to be recorded, measured and read."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from undertow import _validate as validate
from undertow.torch._copies import trainable
from undertow.torch.census.census import Census, check_census
from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.consistency import Comparison
from undertow.torch.monitor.entries import EntryMap
from undertow.torch.monitor.measure import Gathered, Measurement, gather, measure
from undertow.torch.monitor.reading import Reading, read_step
from undertow.torch.monitor.requests import Requests
from undertow.torch.monitor.scale_requests import scale_requests
from undertow.torch.monitor.settings import SGD, StepRule
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.steps import Plan, plan_step

__all__ = ["GatheredStep", "SymmetryMeter", "validate_census"]


def validate_census(model: nn.Module, census: object) -> None:
    """Raise an error if a census is not one of this model."""
    if census is None:
        return
    if not isinstance(census, Census):
        call = validate.quote("NoiseMonitor", census=validate.shown(census))
        raise TypeError(f"{call}: `census` is {validate.kind_of(census)}; give `census(model, ...)`.")
    check_census("NoiseMonitor", census, trainable(model))


class GatheredStep(NamedTuple):
    """What the measurement of a step follows from, on the device of the model, whatever the optimiser does next."""

    plan: Plan
    entries: EntryMap
    gathered: Gathered
    sums: BatchSums

    @property
    def nbytes(self) -> int:
        """Bytes of the statistics of the samples."""
        return sum(x.nbytes for x in self.sums.sums.values())

    def measure(self, comparison: Comparison) -> Measurement:
        """Return the measurement."""
        return measure(self.entries, self.plan, self.gathered, self.sums.sums, comparison)

    def read(self, measurement: Measurement, values: np.ndarray, step: int, samples: int) -> tuple[Reading, ...]:
        """Return one reading per symmetry, from the `Measurement.flat` on the host."""
        facts = {"step": step, "samples": samples, "not_separable": self.sums.not_separable}
        return read_step(self.entries, self.plan, measurement, values, **facts)


class SymmetryMeter:
    """Measure the symmetries of a census; a census without symmetries needs nothing and has no readings.

    Under SGD a GL needs the inner products of its rows; under other optimisers its diagonal generators are enough.
    """

    def __init__(self, census: Census):
        self.census = census
        self._diagonal = False
        self._maps: dict[bool, tuple[Requests, EntryMap]] = {}
        """Requests and entries, by whether a GL is counted by its diagonal generators only."""

    def _current(self) -> tuple[Requests, EntryMap]:
        if self._diagonal not in self._maps:
            requests = Requests(self.census, diagonal=self._diagonal)
            self._maps[self._diagonal] = requests, EntryMap.of(self.census, requests)
        return self._maps[self._diagonal]

    @property
    def requests(self) -> list[StatisticRequest]:
        """The statistics of the samples that have to be recorded."""
        return list(self._current()[0].all()) if len(self.census) else []

    def optional(self, model: nn.Module) -> list[StatisticRequest]:
        """Return what the noise scale needs beside `requests`."""
        return scale_requests(self.requests, trainable(model))

    def gather(
        self,
        sums: BatchSums,
        parameters: Mapping[str, nn.Parameter],
        rules: Mapping[str, StepRule],
        device: torch.device,
    ) -> GatheredStep | None:
        """Return what the measurement of a step follows from: the sums over its samples, and the step itself."""
        if not len(self.census):
            return None
        entries, plan = self._current()[1], plan_step(self.census.symmetries, rules)
        return GatheredStep(plan, entries, gather(entries, parameters, plan, device), sums)

    def choose_requests(self, gathered: GatheredStep | None) -> bool:
        """Choose what the steps of the optimiser need; return whether other statistics have to be recorded now."""
        if gathered is None:
            return False
        pairs = zip(self.census, gathered.plan.kinds, strict=True)
        diagonal = not any(kind == SGD for symmetry, kind in pairs if symmetry.block > 1)
        changed = diagonal != self._diagonal
        self._diagonal = diagonal
        return changed
