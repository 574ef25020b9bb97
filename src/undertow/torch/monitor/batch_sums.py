"""Sums over the samples of a step."""

from collections.abc import Hashable
from typing import TypeVar

import torch
from torch import Tensor

from undertow.torch.monitor.statistics import StatisticRequest

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

    def add(self, other: "BatchSums") -> None:
        """Add the samples of another backward pass."""
        self.samples += other.samples
        self.counted = self.counted + other.counted
        self.sums = _added(self.sums, other.sums)
        self.probes = _added(self.probes, other.probes)
        self.flipped |= other.flipped
        self.half |= other.half
        self.not_separable |= other.not_separable

    @property
    def finite(self) -> Tensor:
        """Whether all sums are finite, as a tensor."""
        totals = [value.sum() for value in self.sums.values()]
        return torch.stack([x.to(totals[0]) for x in totals]).isfinite().all() if totals else torch.tensor(True)

    def if_finite(self) -> "BatchSums":
        """Return these sums, or zeros if they are not finite: under a gradient scaler no step follows then."""
        finite = self.finite
        kept = lambda x: torch.where(finite.to(x.device), x, torch.zeros((), dtype=x.dtype, device=x.device))
        result = BatchSums()
        result.samples, result.counted = self.samples, finite * self.samples
        result.sums = {request: kept(x) for request, x in self.sums.items()}
        result.probes = {name: kept(x) for name, x in self.probes.items()}
        result.flipped, result.half = dict(self.flipped), set(self.half)
        result.not_separable = dict(self.not_separable)
        return result


def _added(mine: dict[Key, Tensor], theirs: dict[Key, Tensor]) -> dict[Key, Tensor]:
    return mine | {key: mine[key] + value if key in mine else value for key, value in theirs.items()}
