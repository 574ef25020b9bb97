"""The result of a measured step on the host: the noise scale and the readings of symmetries, or why there are none."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from undertow.torch.monitor.consistency import NOT_FINITE, Comparison
from undertow.torch.monitor.noise_scale import GradientPower, gradient_power
from undertow.torch.monitor.reading import Reading
from undertow.torch.monitor.symmetry_meter import GatheredStep
from undertow.torch.monitor.tensors import on_host

__all__ = ["StepResult", "read_result"]

NOTHING: Mapping[str, str] = MappingProxyType({})


class StepResult(NamedTuple):
    """What was measured at a step."""

    problem: str | None
    """Why nothing was measured, None if something was."""
    power: GradientPower | None = None
    readings: tuple[Reading, ...] = ()
    unmatched: Mapping[str, str] = NOTHING
    """Parameters whose gradients do not agree with the recorded ones, with the reason."""
    not_separable: Mapping[str, str] = NOTHING
    """Parameters whose noise is not known, with the reason."""

    def expected(self, *, scaled: bool) -> bool:
        """Return whether the step is one that a gradient scaler leaves out."""
        return self.problem == NOT_FINITE and scaled


def read_result(step: int, comparison: Comparison, gathered: GatheredStep | None) -> StepResult:
    """Return the result of a step: compare and measure on the device of the model, and read the numbers on the host."""
    measurement = None if gathered is None else gathered.measure(comparison)
    numbers = [comparison.numbers] if measurement is None else [comparison.numbers, measurement.flat()]
    ahead, rest = np.split(on_host(torch.cat(numbers)), [len(numbers[0])])  # the only transfer
    compared = comparison.read(ahead)
    if compared.problem is not None:
        return StepResult(compared.problem)
    power = gradient_power(step, compared.samples, compared.second, compared.square)
    if gathered is None or measurement is None:
        return StepResult(None, power, (), compared.unmatched)
    readings = gathered.read(measurement, rest, step, compared.samples)
    return StepResult(None, power, readings, compared.unmatched, gathered.sums.not_separable)
