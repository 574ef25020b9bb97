"""Sums over samples for the weight and the bias of a dense layer without positions, on a CPU.

With the inputs a and the derivatives b of the outputs, they need sum_n |a_n|^2 b_n^2, sum_n |b_n|^2 a_n^2, sum_n b_n^2,
sum_n b_n and sum_n (a_n v) b_n. Computed one after the other, each of them reads a or b from memory again. Here some
samples at a time are in the cache for all of them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["DenseSums", "WeightSums"]

CACHED_BYTES = 2**20
"""Bytes of inputs and derivatives that are processed at once."""


class WeightSums(NamedTuple):
    """Sums over samples for the weight."""

    by_output: Tensor
    """sum_n |a_n|^2 b_n^2; zeros if not requested."""
    by_input: Tensor
    """sum_n |b_n|^2 a_n^2; zeros if not requested."""
    probe: Tensor
    """sum_n (a_n v) b_n."""


class DenseSums:
    """The sums of one layer in one pass: `out` is (samples, outputs), `into` (samples, inputs), `vector` (inputs,)."""

    def __init__(self, out: Tensor, into: Tensor, vector: Tensor):
        self._out, self._into, self._vector = out, into, vector
        self._bias: tuple[Tensor, Tensor] | None = None
        self.probe: Tensor | None = None
        """The probe of the weight, once `weight` was called."""

    def weight(self, *, by_output: bool, by_input: bool) -> WeightSums:
        """Return the sums for the weight, and keep those for the bias."""
        out, into = self._out, self._into
        size = max(1, CACHED_BYTES // max(1, out[0].nbytes + into[0].nbytes))
        rows, bias_squares, bias_total, probe = out.new_zeros(4, out.shape[1]).unbind()
        columns = into.new_zeros(into.shape[1])
        squares = torch.empty_like(out[:size])
        input_squares = torch.empty_like(into[:size]) if by_input else None
        ones = out.new_ones(min(size, len(out)))
        for b, a in zip(out.split(size), into.split(size), strict=True):
            one, squared = ones[: len(b)], torch.mul(b, b, out=squares[: len(b)])
            probe.addmv_(b.mT, torch.mv(a, self._vector))
            bias_total.addmv_(b.mT, one)
            bias_squares.addmv_(squared.mT, one)
            if by_output:
                rows.addmv_(squared.mT, torch.linalg.vector_norm(a, dim=1).square_())
            if input_squares is not None:
                own = torch.mul(a, a, out=input_squares[: len(a)])
                columns.addmv_(own.mT, torch.linalg.vector_norm(b, dim=1).square_())
        self._bias, self.probe = (bias_squares, bias_total), probe
        return WeightSums(rows, columns, probe)

    def bias(self) -> tuple[Tensor, Tensor]:
        """Return sum_n b_n^2 and sum_n b_n."""
        if self._bias is None:
            self._bias = self._out.square().sum(0), self._out.sum(0)
        return self._bias
