"""The statistics that the noise scale needs: one sum of squares over samples for each parameter."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.tensors import joined, on_device

__all__ = ["scale_requests", "squares_over_samples"]


def scale_requests(
    requests: Sequence[StatisticRequest], parameters: Mapping[str, nn.Parameter]
) -> list[StatisticRequest]:
    """Return requests for the parameters without one for the squares of all their entries."""
    known = {request.parameter for request in requests if request.index is None}
    return [StatisticRequest(name, 0) for name in parameters if name not in known]


def squares_over_samples(
    sums: BatchSums, requests: Mapping[str, Sequence[StatisticRequest]], names: Sequence[str], device: torch.device
) -> Tensor:
    """Return the sums over samples of the squared gradients of some parameters; 0 for those that were not used."""
    parts: list[Tensor] = []
    for name in names:
        recorded = [request for request in requests[name] if request in sums.sums]
        best = min(recorded, key=lambda request: request.index is not None, default=None)
        values = torch.zeros(0, device=device) if best is None else sums.sums[best]
        parts.append(values if values.ndim < 3 else values.diagonal(dim1=1, dim2=2))
    owner = torch.arange(len(names)).repeat_interleave(torch.tensor([part.numel() for part in parts]))
    values = joined(parts, device)
    return values.new_zeros(len(names)).index_add_(0, on_device(owner, device), values)
