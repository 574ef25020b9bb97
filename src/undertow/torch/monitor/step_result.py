"""The result of a measured step on the host: the noise scale and the readings of symmetries, or why there are none."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from undertow.torch.monitor.consistency import NOT_FINITE, Comparison
from undertow.torch.monitor.noise_scale import GradientPower, gradient_power
from undertow.torch.monitor.reading import Reading
from undertow.torch.monitor.symmetry_meter import MeasuredStep
from undertow.torch.monitor.tensors import HostCopy

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


def read_result(step: int, comparison: Comparison, measured: MeasuredStep, numbers: HostCopy) -> StepResult:
    """Return the result of a step from the numbers of the comparison and the measurement, once they are on the host."""
    ahead, rest = np.split(numbers.numpy(), [len(comparison.numbers)])
    compared = comparison.read(ahead)
    if compared.problem is not None:
        return StepResult(compared.problem)
    power = gradient_power(step, compared.samples, compared.second, compared.square)
    readings = measured.read(rest, step, compared.samples)
    return StepResult(None, power, readings, compared.unmatched, measured.not_separable)
