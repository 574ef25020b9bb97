"""Whether a batch has enough samples to decide which indices are coupled.

A ReLU that is inactive for all samples of a batch has no gradient. The codes of `census.couplings` then give no
information on it. How often this happens is measured in the draws of weights in which moments are taken.
"""

import math
from collections.abc import Iterable, Mapping

from torch import Tensor

from undertow.torch._copies import Batch
from undertow.torch.census.axes import Axis
from undertow.torch.census.codes import ZEROS
from undertow.torch.census.couplings import MOST_BY_CHANCE, MOST_PASSES

__all__ = ["most_inactive", "too_few_samples"]

LEAST_SAMPLES = 32
"""Least number of samples that is asked for."""
ALLOWED = 0.25
"""Share of inactive indices that is always allowed: other indices of the same layers decide then."""
WANTED = 0.1
"""Share of inactive indices that the number of samples asked for would have."""


def most_inactive(length: int) -> float:
    """Return the share of inactive indices up to which random codes find the partners of an axis of this length.

    Of n^2 pairs of indices, (1 - ZEROS)^k n^2 look like partners by chance after k passes in which both are active.
    """
    needed = math.log(length**2 / MOST_BY_CHANCE) / -math.log(1 - ZEROS)
    return max(ALLOWED, 1 - needed / ((1 - ZEROS) * MOST_PASSES))


def too_few_samples(axes: Iterable[Axis], inactive: Mapping[tuple, list[float]], batch: Batch) -> list[str]:
    """Return a sentence for each parameter whose indices are inactive too often, with the number of samples to give."""
    sentences: dict[str, str] = {}
    samples = _samples(batch)
    for axis in axes:
        shares = inactive.get((axis.parameter, axis.axis, axis.by_matrix, axis.shift), [])
        share = sum(shares) / len(shares) if shares else 0.0
        if axis.role == "out" and axis.parameter not in sentences and share > most_inactive(axis.length):
            wanted = math.ceil(samples * math.log(WANTED) / math.log(min(share, 0.99)))
            sentences[axis.parameter] = (
                f"{axis}: on this batch {share:.0%} of its indices have no gradient at random weights (units that are "
                "inactive for all samples), too many to decide what they are coupled to; give a batch of at least "
                f"{max(wanted, LEAST_SAMPLES)} samples"
            )
    return list(sentences.values())


def _samples(batch: Batch) -> int:
    """Return the length of the first axis of the first tensor of a batch, 1 if there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((_samples(part) for part in parts if isinstance(part, Tensor | Mapping | list | tuple)), 1)
