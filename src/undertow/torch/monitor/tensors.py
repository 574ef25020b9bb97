"""Transfer and precision of tensors."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["at_least_single", "joined", "on_device", "tensors_in", "to_numpy"]


def to_numpy(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return tensors as arrays in double precision, with one transfer (and one synchronisation) per device."""
    arrays: dict[int, np.ndarray] = {}
    for device in {x.device for x in tensors}:
        on_device = {place: x for place, x in enumerate(tensors) if x.device == device}
        flat = torch.cat([x.reshape(-1).double() for x in on_device.values()]).numpy(force=True)
        ends = np.cumsum([x.numel() for x in on_device.values()])
        for (place, x), part in zip(on_device.items(), np.split(flat, ends[:-1]), strict=True):
            arrays[place] = part.reshape(x.shape)
    return [arrays[place] for place in range(len(tensors))]


def joined(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return tensors as one flat tensor in double precision on a device."""
    if len({x.device for x in tensors}) > 1:
        tensors = [x.to(device) for x in tensors]
    return torch.cat([x.reshape(-1) for x in tensors]).to(device, torch.float64)


def on_device(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the host does not wait for a GPU that receives it."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def at_least_single(x: Tensor) -> Tensor:
    """Return a tensor in single precision at least, because squares of half-precision numbers overflow."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def tensors_in(tree: object) -> list[Tensor]:
    """Return the tensors among the leaves of nested lists, tuples and dicts."""
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, Tensor)]
