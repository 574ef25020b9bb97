"""The statistics that the noise scale needs: one sum of squares over samples for each parameter."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.noise_scale import GradientPower, gradient_power
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.tensors import at_least_single, to_numpy

__all__ = ["measure_power", "scale_requests"]


def scale_requests(
    requests: Sequence[StatisticRequest], parameters: Mapping[str, nn.Parameter]
) -> list[StatisticRequest]:
    """Return requests for the parameters without one for the squares of all their entries."""
    known = {request.parameter for request in requests if request.index is None}
    return [StatisticRequest(name, 0) for name in parameters if name not in known]


@torch.no_grad()
def measure_power(
    step: int,
    sums: BatchSums,
    scale: float,
    parameters: Mapping[str, nn.Parameter],
    requests: Mapping[str, Sequence[StatisticRequest]],
    uncovered: Mapping[str, str],
) -> GradientPower:
    """Return noise and signal of the gradient of a step before clipping, by parameter.

    `scale` is the factor between `.grad` and the recorded gradients. A parameter that was not used has neither.
    """
    wanted = [
        (name, sums.sums[request], at_least_single(gradient).square().sum())
        for name in requests
        if name in sums.probes and name not in uncovered and (gradient := parameters[name].grad) is not None
        for request in requests[name]
        if request.index is None and request in sums.sums
    ]
    by_name = {name: (second.sum(), square) for name, second, square in wanted}
    numbers = to_numpy([x for pair in by_name.values() for x in pair])
    second = dict(zip(by_name, map(float, numbers[::2]), strict=True))
    square = {name: float(x) / scale**2 for name, x in zip(by_name, numbers[1::2], strict=True)}
    return gradient_power(step, sums.samples, second, square)
