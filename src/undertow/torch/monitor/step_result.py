"""The result of a measured step on the host: the noise scale and the readings of symmetries, or why there are none."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from torch import Tensor

from undertow.torch.monitor.consistency import NOT_FINITE, Compared, Comparison
from undertow.torch.monitor.noise_scale import GradientPower, gradient_power
from undertow.torch.monitor.reading import Reading
from undertow.torch.monitor.symmetry_meter import GatheredStep
from undertow.torch.monitor.tensors import on_host

__all__ = ["StepResult", "read_result"]

Readings = Callable[[], tuple[Reading, ...]]
DEFERRED_BYTES = 2**20
"""Statistics of a measurement that may wait to be computed; those of a larger one would take memory."""
NOTHING: Mapping[str, str] = MappingProxyType({})


class StepResult(NamedTuple):
    """What was measured at a step."""

    problem: str | None
    """Why nothing was measured, None if something was."""
    power: GradientPower | None = None
    readings: Readings = tuple
    """Returns the readings; where the model is on the host, they are computed when this is called."""
    unmatched: Mapping[str, str] = NOTHING
    """Parameters whose gradients do not agree with the recorded ones, with the reason."""
    not_separable: Mapping[str, str] = NOTHING
    """Parameters whose noise is not known, with the reason."""

    def completed(self) -> "StepResult":
        """Return the result with its readings computed."""
        readings = self.readings()
        return self._replace(readings=lambda: readings)

    def expected(self, *, scaled: bool) -> bool:
        """Return whether the step is one that a gradient scaler leaves out."""
        return self.problem == NOT_FINITE and scaled


def read_result(step: int, comparison: Comparison, gathered: GatheredStep | None) -> StepResult:
    """Return the result of a step: compare and measure on the device of the model, and read the numbers on the host."""
    if not isinstance(comparison.numbers, Tensor):
        compared = comparison.read(comparison.numbers)
        later = functools.partial(_measured_readings, step, comparison, gathered, compared.samples)
        result = _result(step, compared, gathered, later)
        return result if gathered is None or gathered.nbytes <= DEFERRED_BYTES else result.completed()
    measurement = None if gathered is None else gathered.measure(comparison)
    numbers = [comparison.numbers, *(measurement.flat() if measurement is not None else ())]
    ahead, rest = np.split(on_host(numbers), [len(numbers[0])])  # the only transfer
    compared = comparison.read(ahead)
    readings: tuple[Reading, ...] = ()
    if gathered is not None and measurement is not None and compared.problem is None:
        readings = gathered.read(measurement, rest, step, compared.samples)
    return _result(step, compared, gathered, lambda: readings)


def _result(step: int, compared: Compared, gathered: GatheredStep | None, readings: Readings) -> StepResult:
    if compared.problem is not None:
        return StepResult(compared.problem)
    power = gradient_power(step, compared.samples, compared.second, compared.square)
    not_separable = NOTHING if gathered is None else gathered.sums.not_separable
    return StepResult(None, power, readings, compared.unmatched, not_separable)


def _measured_readings(
    step: int, comparison: Comparison, gathered: GatheredStep | None, samples: int
) -> tuple[Reading, ...]:
    """Return the readings of a step whose numbers are on the host."""
    if gathered is None:
        return ()
    measurement = gathered.measure(comparison)
    return gathered.read(measurement, on_host(measurement.flat()), step, samples)
