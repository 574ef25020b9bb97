"""Per-sample gradients of a parameter, stored as they are or as sums of outer products.

The gradient of one sample with respect to the weights of a dense layer is sum_t b_t a_t' over its positions t, with a
the input of the layer and b the derivative of the loss with respect to its output. `Outer` stores a and b, and forms
the gradient only where needed. Both types have the same methods.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["CPU_CHUNK_BYTES", "GPU_CHUNK_BYTES", "Dense", "Outer", "gradient_probe", "samples_per_chunk"]

GPU_CHUNK_BYTES, CPU_CHUNK_BYTES = 2**28, 2**21
"""Bytes of per-sample quantities formed at once. On a CPU, quantities that fit in its cache are faster."""


def samples_per_chunk(numbers: int, like: Tensor) -> int:
    """Return how many samples with so many numbers each are processed at once."""
    memory = GPU_CHUNK_BYTES if like.is_cuda else CPU_CHUNK_BYTES
    return max(1, memory // max(1, numbers * like.element_size()))


@dataclass(frozen=True)
class Dense:
    """Per-sample gradients as they are: (samples, *shape of the parameter)."""

    gradients: Tensor

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.gradients)

    def formed(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the gradients of some samples."""
        return self.gradients[start:stop]

    def total(self) -> Tensor:
        """Return the sum of the gradients over samples."""
        return self.gradients.sum(0)

    def as_outer(self) -> "Outer | None":
        """Return None: these gradients have no factors."""
        return None


@dataclass(frozen=True)
class Outer:
    """Per-sample gradients as sums over positions of outer products."""

    out: Tensor
    """(samples, positions, outputs): derivatives of the loss with respect to the outputs of the layer."""
    into: Tensor
    """(samples, positions, inputs): inputs of the layer."""
    shape: tuple[int, ...]
    """Shape of the parameter."""
    flipped: bool = False
    """Whether the parameter is (inputs, outputs)."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.out)

    @property
    def positions(self) -> int:
        """Number of outer products in the gradient of one sample."""
        return self.out.shape[1]

    def formed(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the gradients of some samples."""
        out, into = self.out[start:stop], self.into[start:stop]
        first, second = (into, out) if self.flipped else (out, into)
        return (first.mT @ second).reshape(-1, *self.shape)

    def total(self) -> Tensor:
        """Return the sum of the gradients over samples."""
        return sum(chunk.formed().sum(0) for chunk in self.chunks(math.prod(self.shape)))

    def as_outer(self) -> "Outer | None":
        """Return the gradients themselves."""
        return self

    def chunks(self, numbers: int) -> Iterator["Outer"]:
        """Iterate over the samples, as many at a time as fit in memory with so many numbers each."""
        size = samples_per_chunk(numbers, self.out)
        for start in range(0, self.out.shape[0], size):
            yield replace(self, out=self.out[start : start + size], into=self.into[start : start + size])

    def factors(self, axis: int) -> tuple[Tensor, Tensor, int]:
        """Return the factor that has this axis, the other factor, and the number of columns per index of the axis."""
        if (axis == 0) != self.flipped:
            return self.out, self.into, 1
        return self.into, self.out, self.into.shape[2] // self.shape[axis]

    def probe(self) -> Tensor:
        """Return the gradient of the batch times a fixed vector along the inputs, without forming the gradient."""
        along = self.into @ _probe_vector(self.into.shape[2], self.into.dtype, self.into.device)
        return along.flatten() @ self.out.flatten(0, 1)


@functools.lru_cache(maxsize=256)
def _probe_vector(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the fixed vector of probes: entries of similar size without a pattern."""
    return torch.cos(1.7 * torch.arange(size, dtype=torch.float64) ** 1.1 + 0.3).to(device, dtype)


def gradient_probe(gradient: Tensor, flipped: bool | None) -> Tensor:
    """Return what `Outer.probe` returns, from the gradient of a parameter; with `flipped` None the whole gradient."""
    if flipped is None:
        return gradient.flatten()
    matrix = gradient.mT if flipped else gradient.flatten(1)
    return matrix @ _probe_vector(matrix.shape[1], matrix.dtype, matrix.device)
