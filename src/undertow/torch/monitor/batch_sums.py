"""Sums over the samples of a step."""

from collections.abc import Hashable
from typing import TypeVar

import numpy as np
from torch import Tensor

from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.tensors import to_numpy

__all__ = ["BatchSums"]

Key = TypeVar("Key", bound=Hashable)


class BatchSums:
    """Sums over all samples recorded since the last step."""

    def __init__(self) -> None:
        self.samples = 0
        self.sums: dict[StatisticRequest, Tensor] = {}
        """The requested statistics, summed over samples."""
        self.probes: dict[str, Tensor] = {}
        """A projection of the recorded gradient by parameter, to compare with `.grad`."""
        self.flipped: dict[str, bool | None] = {}
        """How to make the same projection of the gradient of a parameter; None: the probe is the whole gradient."""
        self.half: set[str] = set()
        """Parameters whose derivatives came in half precision."""
        self.overflowed = False
        """Whether a backward pass was left out because its derivatives were not finite."""

    def add(self, other: "BatchSums") -> None:
        """Add the samples of another backward pass."""
        self.samples += other.samples
        self.sums = _added(self.sums, other.sums)
        self.probes = _added(self.probes, other.probes)
        self.flipped |= other.flipped
        self.half |= other.half

    @property
    def finite(self) -> bool:
        """Whether all sums are finite."""
        return all(map(np.isfinite, to_numpy([value.sum() for value in self.sums.values()])))


def _added(mine: dict[Key, Tensor], theirs: dict[Key, Tensor]) -> dict[Key, Tensor]:
    return mine | {key: mine[key] + value if key in mine else value for key, value in theirs.items()}
