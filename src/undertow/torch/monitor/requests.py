"""The statistics that the symmetries of a census need, each requested once."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.census import Census
from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.statistics import StatisticRequest, statistic
from undertow.torch.monitor.tensors import at_least_single, to_numpy

__all__ = ["Requests", "StepMoments"]

_RequestKey = tuple[str, int, int, bytes]
"""Parameter, axis, block size and the indices of a GL."""


class StepMoments:
    """Second moments of one step, for the samples, the gradient and the weights."""

    def __init__(self, census: Census, requests: "Requests", parameters: Mapping[str, nn.Parameter], sums: BatchSums):
        wanted: dict[tuple, Tensor] = {}
        for symmetry in census:
            for axis in symmetry.axes:
                request = requests.of(axis, symmetry)
                parameter = parameters[axis.parameter]
                if request in sums.sums and ("samples", request) not in wanted:
                    assert parameter.grad is not None
                    wanted["samples", request] = sums.sums[request]
                    wanted["gradient", request] = _statistic(parameter.grad.detach(), request)
                if ("weight", request, axis.shift) not in wanted:
                    value = parameter.detach()
                    shifted = value + axis.shift if axis.shift else value
                    wanted["weight", request, axis.shift] = _statistic(shifted, request)
        self._arrays = dict(zip(wanted, to_numpy(list(wanted.values())), strict=True))

    def weight(self, request: StatisticRequest, shift: float) -> np.ndarray:
        """Return the second moment of the weights."""
        return self._arrays["weight", request, shift]

    def samples_and_gradient(self, request: StatisticRequest) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the sum over samples and the moment of the gradient, None if the parameter was not used."""
        if ("samples", request) not in self._arrays:
            return None
        return self._arrays["samples", request], self._arrays["gradient", request]


class Requests:
    """The statistics for all axes of a census. Symmetries that share a moment share its request."""

    def __init__(self, census: Census):
        self._by_key: dict[_RequestKey, StatisticRequest] = {}
        for symmetry in census:
            for axis in symmetry.axes:
                index = axis.index.reshape(-1, symmetry.block, axis.index.shape[1]) if symmetry.block > 1 else None
                self._by_key.setdefault(_key(axis, symmetry), StatisticRequest(axis.parameter, axis.axis, index))

    def of(self, axis: Axis, symmetry: Symmetry) -> StatisticRequest:
        """Return the request for an axis of a symmetry."""
        return self._by_key[_key(axis, symmetry)]

    def all(self) -> list[StatisticRequest]:
        """Return all requests."""
        return list(self._by_key.values())


def _key(axis: Axis, symmetry: Symmetry) -> _RequestKey:
    index = axis.index.tobytes() if symmetry.block > 1 else b""
    return axis.parameter, axis.axis, symmetry.block, index


def _statistic(tensor: Tensor, request: StatisticRequest) -> Tensor:
    """Return the requested statistic of one tensor."""
    return statistic(at_least_single(tensor).reshape(1, *(tensor.shape or (1,))), request)
