"""The statistics that the noise scale needs: one sum of squares over samples for each parameter."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.arrays import Array, add_by_index, array_on, joined_array
from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.statistics import StatisticRequest

__all__ = ["scale_requests", "squares_over_samples"]


def scale_requests(
    requests: Sequence[StatisticRequest], parameters: Mapping[str, nn.Parameter]
) -> list[StatisticRequest]:
    """Return requests for the parameters without one for the squares of all their entries."""
    known = {request.parameter for request in requests if request.index is None}
    return [StatisticRequest(name, 0) for name in parameters if name not in known]


def squares_over_samples(
    sums: BatchSums, requests: Mapping[str, Sequence[StatisticRequest]], names: Sequence[str], device: torch.device
) -> Array:
    """Return the sums over samples of the squared gradients of some parameters; 0 for those that were not used."""
    parts: list[Tensor] = []
    for name in names:
        recorded = [request for request in requests[name] if request in sums.sums]
        best = min(recorded, key=lambda request: request.index is not None, default=None)
        values = torch.zeros(0, device=device) if best is None else sums.sums[best]
        parts.append(values if values.ndim < 3 else values.diagonal(dim1=1, dim2=2))
    owner = np.repeat(np.arange(len(names)), [part.numel() for part in parts])
    return add_by_index(joined_array(parts, device), array_on(owner, device), len(names))
