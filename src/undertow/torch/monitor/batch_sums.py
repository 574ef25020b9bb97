"""Sums over the samples of a step."""

from collections.abc import Hashable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from undertow.torch.monitor.arrays import NUMPY_DEVICES
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.tensors import flattened

__all__ = ["BatchSums"]

Key = TypeVar("Key", bound=Hashable)


class BatchSums:
    """Sums over all samples recorded since the last step.

    Whether sums are finite is known on the device of the model, and is not read before the step is measured.
    """

    def __init__(self) -> None:
        self.samples = 0
        """Number of samples, also of those whose derivatives were not finite."""
        self.counted: Tensor | int = 0
        """Number of samples in the sums."""
        self.sums: dict[StatisticRequest, Tensor] = {}
        """The requested statistics, summed over samples."""
        self.probes: dict[str, Tensor] = {}
        """A projection of the recorded gradient by parameter, to compare with `.grad`."""
        self.flipped: dict[str, bool | None] = {}
        """How to make the same projection of the gradient of a parameter; None: the probe is the whole gradient."""
        self.half: set[str] = set()
        """Parameters whose derivatives came in half precision."""
        self.not_separable: dict[str, str] = {}
        """Parameters whose gradients cannot be separated by sample (experts), with the reason."""
        self._valid: Tensor | None = None
        """Whether the sums count, if this is not known on the host."""

    def add(self, other: "BatchSums") -> None:
        """Add the samples of another backward pass."""
        if self.sums or self.probes:
            self.settle()
            other.settle()
        self._valid = other._valid
        self.samples += other.samples
        self.counted = self.counted + other.counted
        for mine, theirs in ((self.sums, other.sums), (self.probes, other.probes)):
            _add_to(mine, theirs)
        self.flipped |= other.flipped
        self.half |= other.half
        self.not_separable |= other.not_separable

    @property
    def finite(self) -> Tensor:
        """Whether all sums are finite, as a tensor."""
        return _all_finite(self.sums)

    def if_finite(self) -> "BatchSums":
        """Return these sums, with no sample counted if they are not finite: under a gradient scaler no step follows.

        They become zeros then before others are added; a single backward pass without samples is not read.
        """
        result = BatchSums()
        result._valid = self.finite
        result.samples, result.counted = self.samples, result._valid * self.samples
        result.sums, result.probes = dict(self.sums), dict(self.probes)
        result.flipped, result.half = dict(self.flipped), set(self.half)
        result.not_separable = dict(self.not_separable)
        return result

    def settle(self) -> None:
        """Make the sums zeros if they are not finite."""
        if self._valid is not None:
            self.sums, self.probes = _where(self._valid, self.sums), _where(self._valid, self.probes)
            self._valid = None


def _add_to(mine: dict[Key, Tensor], theirs: dict[Key, Tensor]) -> None:
    for key, value in theirs.items():
        mine[key] = mine[key] + value if key in mine else value


def _all_finite(tensors: dict[Key, Tensor]) -> Tensor:
    if all(x.device.type in NUMPY_DEVICES for x in tensors.values()):
        return torch.tensor(all(np.isfinite(x.numpy()).all() for x in tensors.values()))
    flat = [torch.cat([flattened(x) for x in group.values()]).isfinite().all() for group in _alike(tensors).values()]
    return torch.stack([x.to(flat[0].device) for x in flat]).all() if flat else torch.tensor(True)


def _where(finite: Tensor, tensors: dict[Key, Tensor]) -> dict[Key, Tensor]:
    """Return the tensors, or zeros, with one operation for all tensors of a kind."""
    result: dict[Key, Tensor] = dict(tensors)
    for group in _alike(tensors).values():
        flat = torch.cat([flattened(x) for x in group.values()])
        flat = torch.where(finite.to(flat.device), flat, torch.zeros((), dtype=flat.dtype, device=flat.device))
        parts = flat.split([x.numel() for x in group.values()])
        result |= {key: part.view(x.shape) for (key, x), part in zip(group.items(), parts, strict=True)}
    return result


def _alike(tensors: dict[Key, Tensor]) -> dict[tuple, dict[Key, Tensor]]:
    """Return the tensors by device and dtype."""
    groups: dict[tuple, dict[Key, Tensor]] = {}
    for key, x in tensors.items():
        groups.setdefault((x.device, x.dtype), {})[key] = x
    return groups
