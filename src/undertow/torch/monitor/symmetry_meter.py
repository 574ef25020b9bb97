"""The symmetries of a census at the steps of an optimiser: what has to be recorded, measured and read."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow import _validate as validate
from undertow.torch._copies import trainable
from undertow.torch.census.census import Census, check_census
from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.consistency import Comparison
from undertow.torch.monitor.entries import EntryMap
from undertow.torch.monitor.measure import Measurement, measure
from undertow.torch.monitor.reading import Reading, read_step
from undertow.torch.monitor.requests import Requests
from undertow.torch.monitor.scale_requests import scale_requests
from undertow.torch.monitor.settings import SGD, StepRule
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.steps import Plan, plan_step

__all__ = ["MeasuredStep", "SymmetryMeter", "validate_census"]


def validate_census(model: nn.Module, census: object) -> None:
    """Raise an error if a census is not one of this model."""
    if census is None:
        return
    if not isinstance(census, Census):
        call = validate.quote("NoiseMonitor", census=validate.shown(census))
        raise TypeError(f"{call}: `census` is {validate.kind_of(census)}; give `census(model, ...)`.")
    check_census("NoiseMonitor", census, trainable(model))


class MeasuredStep(NamedTuple):
    """The measurement of a step, on the device of the model."""

    plan: Plan | None
    entries: EntryMap | None
    measurement: Measurement | None
    numbers: Tensor
    """What `read` needs on the host, as one flat tensor."""
    not_separable: Mapping[str, str] = MappingProxyType({})
    """Parameters whose noise is not known, with the reason."""

    def read(self, values: np.ndarray, step: int, samples: int) -> tuple[Reading, ...]:
        """Return one reading per symmetry, from `numbers` on the host."""
        if self.plan is None or self.entries is None or self.measurement is None:
            return ()
        facts = {"step": step, "samples": samples, "not_separable": self.not_separable}
        return read_step(self.entries, self.plan, self.measurement, values, **facts)


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

    def measure(
        self,
        sums: BatchSums,
        parameters: Mapping[str, nn.Parameter],
        rules: Mapping[str, StepRule],
        comparison: Comparison,
    ) -> MeasuredStep:
        """Return the measurement of a step from the sums over its samples, and the state of the optimiser before it."""
        device = comparison.numbers.device
        if not len(self.census):
            return MeasuredStep(None, None, None, torch.zeros(0, dtype=torch.float64, device=device))
        entries = self._current()[1]
        samples = entries.sample_sums(sums.sums, device)
        plan = plan_step(self.census.symmetries, rules)
        measured = measure(entries, parameters, plan, sums.sums, samples, comparison)
        return MeasuredStep(plan, entries, measured, measured.flat(), sums.not_separable)

    def choose_requests(self, measured: MeasuredStep) -> bool:
        """Choose what the steps of the optimiser need; return whether other statistics have to be recorded now."""
        if measured.plan is None:
            return False
        pairs = zip(self.census, measured.plan.kinds, strict=True)
        diagonal = not any(kind == SGD for symmetry, kind in pairs if symmetry.block > 1)
        changed = diagonal != self._diagonal
        self._diagonal = diagonal
        return changed
