"""Transfer and precision of tensors."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "at_least_single", "detached", "flattened", "joined", "on_device", "on_host", "tensors_in", "to_numpy",
]  # fmt: skip


def on_host(parts: Sequence[np.ndarray | Tensor]) -> np.ndarray:
    """Return arrays and tensors as one flat array in double precision, with one transfer.

    A thread that waits for a GPU here uses no processor time.
    """
    x = torch.cat([torch.as_tensor(part).reshape(-1) for part in parts])
    values = x.double().to("cpu", non_blocking=True)
    if x.is_cuda:
        copied = torch.cuda.Event(blocking=True)
        copied.record(torch.cuda.current_stream(x.device))
        copied.synchronize()
    return values.numpy()


def to_numpy(arrays_or_tensors: Sequence[np.ndarray | Tensor]) -> list[np.ndarray]:
    """Return tensors as arrays in double precision, with one transfer (and one synchronisation) per device."""
    tensors = [torch.as_tensor(x) for x in arrays_or_tensors]
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
    numbers = all(x.ndim == 0 for x in tensors)
    flat = torch.stack(list(tensors)) if numbers else torch.cat([flattened(x) for x in tensors])
    return flat.to(device, torch.float64)


def flattened(x: Tensor) -> Tensor:
    """Return a tensor with one axis, without an operation where it has one already."""
    return x if x.ndim == 1 else x.reshape(-1)


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
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) in (list, tuple):
        return [x for part in cast(Sequence[object], tree) for x in tensors_in(part)]
    if type(tree) is dict:
        return [x for part in tree.values() for x in tensors_in(part)]
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def detached(args: tuple, kwargs: dict[str, object]) -> tuple[tuple, dict[str, object]]:
    """Return the arguments of a call with tensors that have no graph."""
    if not kwargs and len(args) == 1 and isinstance(args[0], Tensor):
        return (args[0].detach(),), kwargs
    return torch.utils._pytree.tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, (args, kwargs))
