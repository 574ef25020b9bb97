"""Per-sample gradients of a parameter, stored as they are, as sums of outer products, or by the rows that they have.

The gradient of one sample with respect to the weights of a dense layer is sum_t b_t a_t' over its positions t, with a
the input of the layer and b the derivative of the loss with respect to its output. `Outer` stores a and b, and forms
the gradient only where needed. An embedding has one row per token: `Scattered` stores tokens and b. All three types
have the same methods.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undertow.torch.monitor.dense_sums import DenseSums
from undertow.torch.monitor.tensors import at_least_single

__all__ = [
    "CPU_CHUNK_BYTES",
    "GPU_CHUNK_BYTES",
    "Dense",
    "Outer",
    "SampleGradients",
    "Scattered",
    "gradient_probe",
    "matrix_probes",
    "probe_vector",
    "samples_per_chunk",
]

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
    flipped: None = None
    """No projection: the probe is the whole gradient."""
    sums: DenseSums | None = None
    """The sums of a bias whose layer has no positions."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are held."""
        return (self.gradients,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter."""
        return self.gradients.shape[1:]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.gradients)

    def formed(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the gradients of some samples."""
        return self.gradients[start:stop]

    def total(self) -> Tensor:
        """Return the sum of the gradients over samples."""
        return self.gradients.sum(0) if self.sums is None else self.sums.bias()[1]

    def as_outer(self) -> "Outer | None":
        """Return None: these gradients have no factors."""
        return None

    def row_squares(self) -> tuple[Tensor, ...] | None:
        """Return the sums of squares of a bias, if its layer has them; others are formed from the gradients."""
        return None if self.sums is None else (self.sums.bias()[0],)

    def probe(self) -> Tensor:
        """Return the gradient of the batch."""
        return self.total().flatten()


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
    layers: int = 1
    """Number of layers of the same shape, whose samples follow each other: (layers * samples, positions, ...)."""
    sums: DenseSums | None = None
    """The sums of a layer without positions, on a CPU."""

    @staticmethod
    def stacked(outers: "Sequence[Outer]") -> "Outer":
        """Return the gradients of layers of the same shape as one."""
        if len(outers) == 1:
            return outers[0]
        out, into = (torch.cat([getattr(outer, name) for outer in outers]) for name in ("out", "into"))
        return replace(outers[0], out=out, into=into, layers=len(outers), sums=None)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are held."""
        return self.out, self.into

    @property
    def samples(self) -> int:
        """Number of samples of each layer."""
        return len(self.out) // self.layers

    @property
    def positions(self) -> int:
        """Number of outer products in the gradient of one sample."""
        return self.out.shape[1]

    def formed(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the gradients of some samples."""
        whole = start == 0 and stop is None
        out, into = (self.out, self.into) if whole else (self.out[start:stop], self.into[start:stop])
        first, second = (into, out) if self.flipped else (out, into)
        gradients = torch.bmm(first.mT, second)
        return gradients if len(self.shape) == 2 else gradients.reshape(-1, *self.shape)

    def total(self) -> Tensor:
        """Return the sum of the gradients over samples."""
        return sum(chunk.formed().sum(0) for chunk in self.chunks(math.prod(self.shape)))

    def as_outer(self) -> "Outer | None":
        """Return the gradients themselves."""
        return self

    def row_squares(self) -> None:
        """Return None: sums of squares are formed from the factors."""
        return

    def chunks(self, numbers: int) -> Iterator["Outer"]:
        """Iterate over the samples of one layer, as many at a time as fit in memory with so many numbers each."""
        size = samples_per_chunk(numbers, self.out)
        for start in range(0, self.out.shape[0], size):
            yield replace(self, out=self.out[start : start + size], into=self.into[start : start + size], sums=None)

    def layer_chunks(self, numbers: int) -> Iterator["Outer"]:
        """Iterate over the layers, as many at a time as fit in memory with so many numbers per sample; at least one."""
        size = max(1, samples_per_chunk(numbers, self.out) // self.samples)
        for first in range(0, self.layers, size):
            count = min(size, self.layers - first)
            part = slice(first * self.samples, (first + count) * self.samples)
            yield replace(self, out=self.out[part], into=self.into[part], layers=count, sums=None)

    def factors(self, axis: int) -> tuple[Tensor, Tensor, int]:
        """Return the factor that has this axis, the other factor, and the number of columns per index of the axis."""
        if (axis == 0) != self.flipped:
            return self.out, self.into, 1
        return self.into, self.out, self.into.shape[2] // self.shape[axis]

    def probe(self) -> Tensor:
        """Return the gradient of the batch times a fixed vector along the inputs, without forming the gradient."""
        return self.probes()[0]

    def probes(self) -> Tensor:
        """Return the probes of all layers: (layers, outputs)."""
        if self.sums is not None and self.sums.probe is not None:
            return self.sums.probe[None]
        along = self.into @ probe_vector(self.into.shape[2], self.into.dtype, self.into.device)
        out = self.out.reshape(self.layers, -1, self.out.shape[2])
        return at_least_single(torch.bmm(along.reshape(self.layers, 1, -1), out)[:, 0])


@dataclass(frozen=True)
class Scattered:
    """Per-sample gradients of an embedding: the derivative at each position is added to the row of its token."""

    tokens: Tensor
    """(samples, positions): rows of the embedding."""
    out: Tensor
    """(samples, positions, width): derivatives of the loss by the outputs, 0 where a row does not train."""
    shape: tuple[int, ...]
    """Shape of the parameter."""
    flipped: bool = True
    """The parameter is (inputs, outputs), with the tokens as inputs."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are held."""
        return self.tokens, self.out

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.out)

    def formed(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the gradients of some samples."""
        tokens, out = self.tokens[start:stop], self.out[start:stop]
        gradients = out.new_zeros(len(out), *self.shape)
        return gradients.scatter_add_(1, tokens[..., None].expand_as(out), out)

    def total(self) -> Tensor:
        """Return the sum of the gradients over samples."""
        zero = self.out.new_zeros(self.shape)
        return zero.index_add_(0, self.tokens.flatten(), self.out.flatten(0, 1))

    def as_outer(self) -> None:
        """Return None: the factors would have as many columns as there are tokens."""
        return

    def row_squares(self) -> tuple[Tensor, Tensor]:
        """Return the sums over samples of the squares of all entries, by row and by column.

        Positions of one sample with the same token are added before they are squared.
        """
        samples = torch.arange(len(self.tokens), device=self.tokens.device)[:, None]
        keys, order = (self.tokens + samples * self.shape[0]).flatten().sort()
        # equal keys get one place; `torch.unique` would wait for a GPU
        place = torch.cat([keys.new_zeros(1), (keys[1:] != keys[:-1]).cumsum(0)])
        rows = torch.zeros_like(self.out.flatten(0, 1))
        squares = rows.index_add_(0, place, self.out.flatten(0, 1)[order]).square()
        by_row = self.out.new_zeros(self.shape[0])
        tokens = torch.zeros_like(keys).scatter_(0, place, keys % self.shape[0])
        return by_row.index_add_(0, tokens, squares.sum(1)), squares.sum(0)

    def probe(self) -> Tensor:
        """Return the gradient of the batch times a fixed vector along the tokens, without forming the gradient."""
        along = probe_vector(self.shape[0], self.out.dtype, self.out.device)[self.tokens]
        return along.flatten() @ self.out.flatten(0, 1)


SampleGradients = Dense | Outer | Scattered
"""Per-sample gradients of a parameter in one of its uses."""


@functools.lru_cache(maxsize=256)
def probe_vector(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the fixed vector of probes: entries of similar size without a pattern."""
    return torch.cos(1.7 * torch.arange(size, dtype=torch.float64) ** 1.1 + 0.3).to(device, dtype)


def gradient_probe(gradient: Tensor, flipped: bool | None) -> Tensor:
    """Return what `Outer.probe` returns, from the gradient of a parameter; with `flipped` None the whole gradient."""
    if flipped is None:
        return gradient.flatten()
    return matrix_probes(gradient if flipped else gradient.flatten(1), flipped)


def matrix_probes(gradients: Tensor, flipped: bool) -> Tensor:
    """Return the probes of the gradients of matrices (..., rows, columns)."""
    matrices = gradients.mT if flipped else gradients
    return matrices @ probe_vector(matrices.shape[-1], matrices.dtype, matrices.device)
