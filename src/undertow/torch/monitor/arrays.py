"""Small arrays of a measurement: NumPy arrays where the model is on the host, tensors where it is on a GPU.

A measurement has hundreds of operations on a few hundred numbers each, and NumPy takes less time to start one of them
than PyTorch. `namespace(x)` is `numpy` or `torch`: both have the functions that are used, with the same
arguments.
"""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from undertow.torch.monitor.tensors import joined, on_device

__all__ = [
    "NUMPY_DEVICES",
    "Array",
    "add_by_index",
    "array_on",
    "as_array",
    "joined_array",
    "largest_by_index",
    "least_by_index",
    "namespace",
    "nonnegative",
    "number_table",
    "stacked",
]

Array = np.ndarray | Tensor
NUMPY_DEVICES = frozenset({"cpu"})
"""Devices whose arrays are those of NumPy."""


def namespace(x: Array) -> ModuleType:
    """Return the module of the functions of an array."""
    return torch if isinstance(x, Tensor) else np


def as_array(x: Tensor) -> Array:
    """Return a tensor of the host as an array that shares its memory, another one as it is."""
    return x.numpy() if x.device.type in NUMPY_DEVICES else x


def array_on(values: Sequence | np.ndarray, device: torch.device) -> Array:
    """Return (nested) lists of numbers, or an array, as an array for a device."""
    own = np.asarray(values)
    return own if device.type in NUMPY_DEVICES else on_device(torch.from_numpy(own), device)


def joined_array(tensors: Sequence[Tensor], device: torch.device) -> Array:
    """Return tensors as one flat array in double precision."""
    return as_array(joined(tensors, device))


def number_table(rows: Sequence[Sequence[float | Tensor]], device: torch.device) -> Array:
    """Return rows of numbers and of tensors of one number as an array, without waiting for the device."""
    flat = [x for row in rows for x in row]
    given = {k: x for k, x in enumerate(flat) if isinstance(x, Tensor)}
    numbers = [0.0 if k in given else x for k, x in enumerate(flat)] if given else flat
    table = array_on(np.array(numbers, dtype=np.float64).reshape(len(rows), -1), device)
    if given:
        own = {id(x): x for x in given.values()}  # parameters of a group share one
        order = {key: k for k, key in enumerate(own)}
        index = array_on([list(given), [order[id(x)] for x in given.values()]], device)
        table.reshape(-1)[index[0]] = joined_array(list(own.values()), device)[index[1]]
    return table


def stacked(parts: Sequence[Array]) -> Array:
    """Return arrays of one axis as the rows of one array."""
    if isinstance(parts[0], Tensor):
        return torch.stack(list(parts))
    return np.concatenate(parts).reshape(len(parts), -1)


def nonnegative(x: Array) -> Array:
    """Return an array with zeros for negative numbers."""
    return x.clamp_min(0) if isinstance(x, Tensor) else np.maximum(x, 0)


def add_by_index(values: Array, index: Array, count: int) -> Array:
    """Return the sums of (..., entries) over the entries of each index: (..., count)."""
    if isinstance(values, Tensor):
        return values.new_zeros(*values.shape[:-1], count).index_add_(-1, index, values)
    if values.ndim == 1:
        return np.bincount(index, values, count)
    sums = torch.zeros(*values.shape[:-1], count, dtype=torch.float64)
    return sums.index_add_(-1, torch.from_numpy(index), torch.from_numpy(values)).numpy()


def largest_by_index(values: Array, index: Array, count: int) -> Array:
    """Return the largest of nonnegative values (..., entries) with each index: (..., count)."""
    return _extremes(values, index, count, 0.0, "amax")


def least_by_index(values: Array, index: Array, count: int) -> Array:
    """Return the least of the values (..., entries) with each index: (..., count)."""
    return _extremes(values, index, count, torch.inf, "amin")


def _extremes(values: Array, index: Array, count: int, start: float, reduction: str) -> Array:
    tensor, places = torch.as_tensor(values), torch.as_tensor(index)
    extremes = tensor.new_full((*tensor.shape[:-1], count), start)
    extremes.scatter_reduce_(-1, places.expand(tensor.shape), tensor, reduction)
    return extremes if isinstance(values, Tensor) else extremes.numpy()
