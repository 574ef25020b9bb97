"""Second moments of per-sample gradients, with the gradients formed only where this is faster.

A dense layer without positions has the squares b_i^2 |a|^2 for row i: no gradient of a sample is formed. With positions
either the inner products a_t a_s' (the Gram matrix) or the gradient itself is cheaper. `Autotuner` measures which,
once for each shape, unless the numbers of operations already decide.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from undertow.torch.monitor.sample_gradients import GPU_CHUNK_BYTES, Outer, SampleGradients, samples_per_chunk
from undertow.torch.monitor.tensors import at_least_single

__all__ = [
    "Autotuner",
    "ShapeKey",
    "StatisticRequest",
    "batch_statistics",
    "inner_products",
    "layer_statistics",
    "statistic",
]

MEMORY = GPU_CHUNK_BYTES
"""Bytes of one sample above which an algorithm is not used."""
MAX_OPERATION_RATIO = 8
"""An algorithm that takes so many times the operations of another is not tried."""


@dataclass(frozen=True, eq=False)
class StatisticRequest:
    """A second moment to sum over samples, of their gradients in one parameter along one axis.

    With `index` None it is the squares of every index. Otherwise it is inner products: `index` is (blocks, block,
    indices that move together), and the statistic (blocks, block, block).
    """

    parameter: str
    axis: int
    index: np.ndarray | None = None
    matrices: int = 1
    """Number of matrices in a row along the first axis, if each has indices of its own along `axis`."""

    @functools.cached_property
    def kind(self) -> tuple:
        """What requests of parameters that are computed together have in common."""
        return self.axis, self.matrices, None if self.index is None else (self.index.shape, self.index.tobytes())


def statistic(gradients: Tensor, request: StatisticRequest, layers: int = 1) -> Tensor:
    """Return the requested sums over gradients (layers * samples, *shape), layer by layer."""
    by_layer = lambda values: values.unflatten(0, (layers, -1))
    if request.index is not None:
        return by_layer(inner_products(gradients, request)).sum(1)
    gradients, axis = _apart(gradients, request)
    half = gradients.dtype == torch.bfloat16
    dtype = torch.float32 if half else None
    if axis == 1 and gradients.ndim > 2:
        return by_layer(torch.linalg.vector_norm(gradients.flatten(2), dim=2, dtype=dtype).square()).sum(1)
    gradients = by_layer(gradients)
    others = [k for k in range(1, gradients.ndim) if k != axis + 1]
    if half:
        return torch.linalg.vector_norm(gradients, dim=others, dtype=dtype).square()
    return gradients.square().sum(others)


def inner_products(tensors: Tensor, request: StatisticRequest) -> Tensor:
    """Return the requested inner products of each of the tensors (tensors, *shape): (tensors, blocks, block, block)."""
    assert request.index is not None
    tensors, axis = _apart(tensors, request)
    blocks, block, together = request.index.shape
    rows = _select(tensors.movedim(axis, 1), 1, request.index).reshape(len(tensors), blocks, block, together, -1)
    rows = at_least_single(rows)
    return sum(rows[:, :, :, k] @ rows[:, :, :, k].mT for k in range(together))


def _apart(tensors: Tensor, request: StatisticRequest) -> tuple[Tensor, int]:
    """Return (tensors, *shape) with the indices of all matrices along one axis, and this axis."""
    axis = request.axis + 1
    if request.matrices == 1:
        return tensors, axis
    apart = tensors.unflatten(1, (request.matrices, -1)).movedim((1, axis + 1), (1, 2))
    return apart.reshape(len(tensors), apart.shape[1] * apart.shape[2], -1), 1


def batch_statistics(
    uses: Sequence[SampleGradients], requests: Sequence[StatisticRequest], autotuner: "Autotuner"
) -> list[Tensor]:
    """Return the requested sums over samples, of gradients that are the sum of several uses of one parameter."""
    rows = all(request.index is None and request.matrices == 1 for request in requests)
    squares = uses[0].row_squares() if len(uses) == 1 and rows else None
    if squares is not None:
        return [squares[request.axis] for request in requests]
    outers = [outer for use in uses if (outer := use.as_outer()) is not None]
    alike = len(outers) == len(uses) and len({outer.flipped for outer in outers}) == 1
    if alike and all(request.matrices == 1 for request in requests):
        outer = outers[0]
        if len(outers) > 1:  # further uses are further positions
            out, into = (torch.cat([getattr(use, name) for use in outers], 1) for name in ("out", "into"))
            outer = Outer(out, into, outer.shape, outer.flipped)
        return [values[0] for values in layer_statistics(outer, requests, autotuner)]
    like = uses[0].formed(0, 1)
    size = samples_per_chunk(like.numel(), like)

    def chunk(start: int) -> Tensor:
        gradients = [use.formed(start, start + size) for use in uses]
        return sum(gradients[1:], gradients[0])

    parts = (_statistics(chunk(start), requests) for start in range(0, uses[0].samples, size))
    return [values[0] for values in _add_up(parts)]


def layer_statistics(outer: Outer, requests: Sequence[StatisticRequest], autotuner: "Autotuner") -> list[Tensor]:
    """Return the requested sums over samples for every layer: (layers, ...) each."""
    return _single_position(outer, requests) if outer.positions == 1 else autotuner.run(outer, requests)


def _select(x: Tensor, axis: int, index: np.ndarray) -> Tensor:
    """Return the indices of an axis, without a copy where they are a range."""
    flat = index.reshape(-1)
    if np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        return x.narrow(axis, int(flat[0]), flat.size)
    return x.index_select(axis, _indices(flat.astype(np.int64).tobytes(), x.device))


@functools.lru_cache(maxsize=4096)
def _indices(data: bytes, device: torch.device) -> Tensor:
    """Return indices as a tensor, which is copied to a device once: a copy waits for a GPU."""
    return torch.frombuffer(bytearray(data), dtype=torch.int64).to(device)


def _factor_columns(index: np.ndarray, inner: int) -> np.ndarray:
    """Return the columns of a factor that belong to indices (blocks, block, together), `inner` for each."""
    wide = index[..., None] * inner + np.arange(inner)
    return wide.reshape(*index.shape[:2], -1)


def _block_products(own: Tensor, weighted: Tensor, index: np.ndarray) -> Tensor:
    """Return the sum over rows of own' weighted for each block of columns: (layers, blocks, block, block)."""
    blocks, block, together = index.shape
    first, second = (_select(x, 2, index).reshape(*x.shape[:2], blocks, block, together) for x in (own, weighted))
    return sum((first[..., k].permute(0, 2, 3, 1) @ second[..., k].transpose(1, 2) for k in range(together)), 0)


def _from_factors(request: StatisticRequest, own: Tensor, weighted: Tensor, inner: int) -> Tensor:
    """Return a statistic from the columns of `own` and the same columns weighted: (layers, positions, columns)."""
    if request.index is not None:
        return _block_products(own, weighted, _factor_columns(request.index, inner))
    return _sum_inner((own * weighted).sum(1), inner)


def _sum_inner(squares: Tensor, inner: int) -> Tensor:
    return squares.unflatten(-1, (-1, inner)).sum(-1) if inner > 1 else squares


def _single_position(outer: Outer, requests: Sequence[StatisticRequest]) -> list[Tensor]:
    """Return the statistics of gradients with one position, from b_i^2 |a|^2."""
    if outer.sums is not None and all(request.index is None for request in requests):
        is_out = [outer.factors(request.axis)[0] is outer.out for request in requests]
        sums = outer.sums.weight(by_output=True in is_out, by_input=False in is_out)
        return [(sums.by_output if own else sums.by_input)[None] for own in is_out]
    statistics = []
    for request in requests:
        own, other, inner = outer.factors(request.axis)
        own, other = (at_least_single(x[:, 0]).unflatten(0, (outer.layers, -1)) for x in (own, other))
        power = torch.linalg.vector_norm(other, dim=2).square()  # without a temporary as large as the input
        if request.index is None:
            statistics.append(_sum_inner((power[:, None] @ own.square())[:, 0], inner))
        else:
            statistics.append(_from_factors(request, own, own * power[..., None], inner))
    return statistics


def _over_chunks(
    outer: Outer, numbers: int, statistics: Callable[[Outer, Sequence[StatisticRequest]], list[Tensor]],
    requests: Sequence[StatisticRequest],
) -> list[Tensor]:  # fmt: skip
    """Return the statistics of all layers, as many of them or of the samples of one at a time as fit in memory."""
    if outer.layers == 1:
        return _add_up(statistics(chunk, requests) for chunk in outer.chunks(numbers))
    parts = []
    for some in outer.layer_chunks(numbers):
        parts.append(
            statistics(some, requests) if some.layers > 1 else _over_chunks(some, numbers, statistics, requests)
        )
    return [torch.cat(values) for values in zip(*parts, strict=True)]


def _by_gram(outer: Outer, requests: Sequence[StatisticRequest]) -> list[Tensor]:
    """Return the statistics by inner products of positions: sum_ts b_ti (a_t a_s') b_si."""
    return _over_chunks(outer, _numbers_per_sample(outer)["gram"], _gram_statistics, requests)


def _gram_statistics(outer: Outer, requests: Sequence[StatisticRequest]) -> list[Tensor]:
    weighted_factors: dict[bool, tuple[Tensor, Tensor]] = {}
    by_layer = lambda x: x.reshape(outer.layers, -1, x.shape[2])
    statistics = []
    for request in requests:
        own, other, inner = outer.factors(request.axis)
        is_out = own is outer.out
        if is_out not in weighted_factors:
            weighted_factors[is_out] = by_layer(own), by_layer(torch.bmm(torch.bmm(other, other.mT), own))
        statistics.append(_from_factors(request, *weighted_factors[is_out], inner))
    return statistics


def _directly(outer: Outer, requests: Sequence[StatisticRequest]) -> list[Tensor]:
    """Return the statistics from the gradients themselves."""
    formed = lambda part, wanted: _statistics(part.formed(), wanted, part.layers)
    return _over_chunks(outer, _numbers_per_sample(outer)["direct"], formed, requests)


def _statistics(gradients: Tensor, requests: Sequence[StatisticRequest], layers: int = 1) -> list[Tensor]:
    return [statistic(gradients, request, layers) for request in requests]


def _add_up(chunks: Iterable[list[Tensor]]) -> list[Tensor]:
    """Return the sums over chunks, without holding all of them."""
    total: list[Tensor] = []
    for values in chunks:
        total = [a + b for a, b in zip(total, values, strict=True)] if total else values
    return total


ALGORITHMS: dict[str, Callable[[Outer, Sequence[StatisticRequest]], list[Tensor]]] = {
    "gram": _by_gram,
    "direct": _directly,
}


def _numbers_per_sample(outer: Outer) -> dict[str, int]:
    """Return how many numbers each algorithm holds per sample."""
    widest = max(outer.out.shape[2], outer.into.shape[2])
    return {"gram": outer.positions * (outer.positions + widest), "direct": math.prod(outer.shape)}


def _operations_per_sample(outer: Outer, requests: Sequence[StatisticRequest]) -> dict[str, int]:
    """Return approximately how many multiplications each algorithm takes per sample."""
    positions, size = outer.positions, math.prod(outer.shape)
    widths = [(outer.factors(r.axis)[0].shape[2], 1 if r.index is None else r.index.shape[1]) for r in requests]
    sides = len({outer.factors(r.axis)[0] is outer.out for r in requests})
    return {
        "gram": sides * positions**2 * (outer.out.shape[2] + outer.into.shape[2])
        + sum(positions * own * block for own, block in widths),
        "direct": positions * size + sum(size * block for _, block in widths),
    }


def _worth_trying(outer: Outer, requests: Sequence[StatisticRequest]) -> list[str]:
    """Return the algorithms that may be the fastest and whose numbers fit in memory, if those of any do.

    In half precision the Gram matrix would be rounded before it is summed over; a gradient is rounded once.
    """
    if outer.out.dtype == torch.bfloat16:
        return ["direct"]
    numbers, operations = _numbers_per_sample(outer), _operations_per_sample(outer, requests)
    limit = max(MEMORY // outer.out.element_size(), min(numbers[name] for name in ALGORITHMS))
    fit = [name for name in ALGORITHMS if numbers[name] <= limit]
    least = min(operations[name] for name in fit)
    return [name for name in fit if operations[name] <= MAX_OPERATION_RATIO * least]


ShapeKey = tuple[tuple[int, ...], tuple[int, ...], bool, tuple[tuple[int, tuple[int, ...] | None], ...]]
"""Shapes of both factors, whether they are flipped, and the axis and index shape of each request."""


class Autotuner:
    """Choice of the faster algorithm for each shape, measured at its first occurrence."""

    def __init__(self) -> None:
        self.choices: dict[ShapeKey, str] = {}

    def run(self, outer: Outer, requests: Sequence[StatisticRequest]) -> list[Tensor]:
        """Return the statistics, by the faster algorithm."""
        kinds = tuple((r.axis, None if r.index is None else r.index.shape) for r in requests)
        key = (tuple(outer.out.shape), tuple(outer.into.shape), outer.flipped, kinds)
        if key not in self.choices:
            names = _worth_trying(outer, requests)
            seconds = {name: _measure(name, outer, requests) if len(names) > 1 else 0.0 for name in names}
            self.choices[key] = min(seconds, key=lambda name: seconds[name])
        return ALGORITHMS[self.choices[key]](outer, requests)


def _measure(name: str, outer: Outer, requests: Sequence[StatisticRequest]) -> float:
    """Return the seconds per sample of one chunk: the shorter of two runs after a warm-up run."""
    synchronise = torch.cuda.synchronize if outer.out.is_cuda else lambda: None
    numbers = _numbers_per_sample(outer)[name]
    chunk = next(outer.layer_chunks(numbers))
    chunk = next(chunk.chunks(numbers)) if chunk.layers == 1 else chunk
    seconds = []
    for _ in range(3):
        synchronise()
        start = time.perf_counter()
        ALGORITHMS[name](chunk, requests)
        synchronise()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:]) / len(chunk.out)
