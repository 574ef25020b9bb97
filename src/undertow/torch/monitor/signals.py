"""Second moments of per-sample gradients from what a layer receives and what comes back to it.

The gradient of one sample in the weights of a dense layer is sum_t b_t a_t' over its positions t, with a what the layer
receives and b the derivative of the loss in what it puts out. Without positions its rows have squares b_i^2 |a|^2: no
gradient of a sample is ever formed. With positions either the inner products a_t a_s' (the Gram matrix) or the gradient
itself is cheaper; which one is measured, once for each shape, unless it is plain. Layers of other kinds are run again,
sample by sample.
"""

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "Dense", "Outer", "Request", "Ways", "answered", "fetched", "full", "moments", "per_sample", "probe_of", "replayed",
]  # fmt: skip

MEMORY, CACHE = 2**28, 2**21
"""Bytes of per-sample quantities formed at once: on a GPU, and on a processor, where what fits in its cache is fast."""
FAR = 8
"""A way that takes so many times the operations of another is not tried."""
MOST_REPLAYED = 2**31
"""Bytes of per-sample gradients of a layer that is run again: they are all held together."""


@dataclass(frozen=True, eq=False)
class Request:
    """What to sum over samples, of their gradients in one parameter along one axis.

    With `index` None, the squares of every index; else inner products: `index` is (blocks, block, together), and the
    answer (blocks, block, block).
    """

    parameter: str
    axis: int
    index: np.ndarray | None = None


@dataclass(frozen=True)
class Dense:
    """Per-sample gradients as they are: (samples, *shape of the parameter)."""

    gradients: Tensor


@dataclass(frozen=True)
class Outer:
    """Per-sample gradients as sums over positions of outer products."""

    out: Tensor
    """(samples, positions, outputs): what comes back."""
    into: Tensor
    """(samples, positions, inputs): what the layer received."""
    shape: tuple[int, ...]
    """Of the parameter."""
    flipped: bool = False
    """The parameter is (inputs, outputs)."""

    @property
    def positions(self) -> int:
        """How many outer products make one sample's gradient."""
        return self.out.shape[1]

    def formed(self) -> Tensor:
        """The gradients themselves."""
        first, second = (self.into, self.out) if self.flipped else (self.out, self.into)
        return (first.mT @ second).reshape(-1, *self.shape)

    def part(self, start: int, stop: int) -> "Outer":
        """Some of the samples."""
        return replace(self, out=self.out[start:stop], into=self.into[start:stop])

    def parts(self, each: int) -> Iterator["Outer"]:
        """All samples, so many at a time as fit in memory with `each` numbers."""
        size = _together(each, self.out)
        for start in range(0, self.out.shape[0], size):
            yield self.part(start, start + size)

    def sides(self, axis: int) -> tuple[Tensor, Tensor, int]:
        """The factor that has this axis, the other one, and how many of its columns are one index of the axis."""
        if (axis == 0) != self.flipped:
            return self.out, self.into, 1
        return self.into, self.out, self.into.shape[2] // self.shape[axis]


def _together(each: int, like: Tensor) -> int:
    """How many samples with `each` numbers fit in memory."""
    return max(1, (MEMORY if like.is_cuda else CACHE) // max(1, each * like.element_size()))


def _columns(index: np.ndarray, inner: int) -> np.ndarray:
    """The columns of a factor that belong to (blocks, block, together) indices, `inner` for each."""
    wide = index[..., None] * inner + np.arange(inner)
    return wide.reshape(*index.shape[:2], -1)


def _picked(x: Tensor, axis: int, index: np.ndarray) -> Tensor:
    """The indices of an axis, without a copy where they are a range."""
    flat = index.reshape(-1)
    if np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        return x.narrow(axis, int(flat[0]), flat.size)
    return x.index_select(axis, torch.as_tensor(flat, device=x.device))


def _products(own: Tensor, weighted: Tensor, index: np.ndarray) -> Tensor:
    """sum over rows of own' weighted for each block of columns: (blocks, block, block)."""
    blocks, block, together = index.shape
    first, second = (_picked(x, 1, index).reshape(-1, blocks, block, together) for x in (own, weighted))
    return sum((first[..., k].permute(1, 2, 0) @ second[..., k].transpose(0, 1) for k in range(together)), 0)


def _answer(request: Request, own: Tensor, weighted: Tensor, inner: int) -> Tensor:
    """A request from the columns of `own` and those columns times what weighs them, positions as rows."""
    if request.index is not None:
        return _products(own, weighted, _columns(request.index, inner))
    return _inside((own * weighted).sum(0), inner)


def _inside(squares: Tensor, inner: int) -> Tensor:
    return squares.reshape(-1, inner).sum(1) if inner > 1 else squares


def _single(outer: Outer, requests: Sequence[Request]) -> list[Tensor]:
    """One position: b_i^2 |a|^2 and the like."""
    found = []
    for request in requests:
        own, other, inner = outer.sides(request.axis)
        own, other = own[:, 0], other[:, 0]
        power = torch.linalg.vector_norm(other, dim=1).square()  # no temporary as large as what came in
        if request.index is None:
            found.append(_inside(power @ own.square(), inner))
        else:
            found.append(_answer(request, own, own * power[:, None], inner))
    return found


def _by_gram(outer: Outer, requests: Sequence[Request]) -> list[Tensor]:
    """By inner products of positions: sum_ts b_ti (a_t a_s') b_si."""
    return _summed(_with_gram(part, requests) for part in outer.parts(_numbers(outer)["gram"]))


def _with_gram(outer: Outer, requests: Sequence[Request]) -> list[Tensor]:
    kept: dict[bool, tuple[Tensor, Tensor]] = {}
    found = []
    for request in requests:
        own, other, inner = outer.sides(request.axis)
        side = own is outer.out
        if side not in kept:
            weighted = torch.bmm(torch.bmm(other, other.mT), own)
            kept[side] = own.flatten(0, 1), weighted.flatten(0, 1)
        found.append(_answer(request, *kept[side], inner))
    return found


def answered(gradients: Tensor, request: Request) -> Tensor:
    """A request for gradients (samples, *shape)."""
    axis = request.axis + 1
    if request.index is None:
        if axis == 1 and gradients.ndim > 2:
            return torch.linalg.vector_norm(gradients.flatten(2), dim=2).square().sum(0)
        return gradients.square().sum([k for k in range(gradients.ndim) if k != axis])
    blocks, block, together = request.index.shape
    rows = _picked(gradients.movedim(axis, 1), 1, request.index)
    rows = rows.reshape(len(rows), blocks, block, together, -1)
    return sum(((rows[:, :, :, k] @ rows[:, :, :, k].mT).sum(0) for k in range(together)), 0)


def _directly(outer: Outer, requests: Sequence[Request]) -> list[Tensor]:
    """By the gradients themselves."""
    return _summed(_answers(part.formed(), requests) for part in outer.parts(_numbers(outer)["direct"]))


def _answers(gradients: Tensor, requests: Sequence[Request]) -> list[Tensor]:
    return [answered(gradients, request) for request in requests]


def _summed(parts: Iterable[list[Tensor]]) -> list[Tensor]:
    """Added up as they come: not all of them are held."""
    total: list[Tensor] = []
    for values in parts:
        total = [a + b for a, b in zip(total, values, strict=True)] if total else values
    return total


WAYS: dict[str, Callable[[Outer, Sequence[Request]], list[Tensor]]] = {"gram": _by_gram, "direct": _directly}


def _numbers(outer: Outer) -> dict[str, int]:
    """How many numbers each way holds of a sample."""
    widest = max(outer.out.shape[2], outer.into.shape[2])
    return {"gram": outer.positions * (outer.positions + widest), "direct": math.prod(outer.shape)}


def _operations(outer: Outer, requests: Sequence[Request]) -> dict[str, int]:
    """How many multiplications each way takes for a sample, about."""
    positions, size = outer.positions, math.prod(outer.shape)
    widths = [(outer.sides(r.axis)[0].shape[2], 1 if r.index is None else r.index.shape[1]) for r in requests]
    sides = len({outer.sides(r.axis)[0] is outer.out for r in requests})
    return {
        "gram": sides * positions**2 * (outer.out.shape[2] + outer.into.shape[2])
        + sum(positions * own * block for own, block in widths),
        "direct": positions * size + sum(size * block for _, block in widths),
    }


def _sensible(outer: Outer, requests: Sequence[Request]) -> list[str]:
    """The ways that may be the faster one, and whose numbers of a sample fit in memory if those of any do."""
    numbers, operations = ({w: found[w] for w in WAYS} for found in (_numbers(outer), _operations(outer, requests)))
    most = max(MEMORY // outer.out.element_size(), min(numbers.values()))
    fit = [way for way in WAYS if numbers[way] <= most]
    least = min(operations[way] for way in fit)
    return [way for way in fit if operations[way] <= FAR * least]


class Ways(dict):
    """Which way was the faster one, for each shape that was seen: measured the first time, if it is not plain."""

    def choose(self, outer: Outer, requests: Sequence[Request]) -> list[Tensor]:
        """The answers, by the faster way."""
        kinds = tuple((r.axis, None if r.index is None else r.index.shape) for r in requests)
        key = (tuple(outer.out.shape), tuple(outer.into.shape), outer.flipped, kinds)
        if key not in self:
            ways = _sensible(outer, requests)
            spent = {way: _timed(way, outer, requests) for way in ways} if len(ways) > 1 else dict.fromkeys(ways, 0.0)
            self[key] = min(spent, key=lambda way: spent[way])
        return WAYS[self[key]](outer, requests)


def _timed(way: str, outer: Outer, requests: Sequence[Request]) -> float:
    """Seconds a sample, of as many as go at once: the better of two runs after one that is not counted."""
    wait = torch.cuda.synchronize if outer.out.is_cuda else lambda: None
    part = next(outer.parts(_numbers(outer)[way]))
    spent = []
    for _ in range(3):
        wait()
        began = time.perf_counter()
        WAYS[way](part, requests)
        wait()
        spent.append(time.perf_counter() - began)
    return min(spent[1:]) / len(part.out)


def moments(uses: Sequence[Outer | Dense], requests: Sequence[Request], ways: Ways) -> list[Tensor]:
    """The requested sums over samples, of gradients that are the sum of several uses of one parameter."""
    outers = [use for use in uses if isinstance(use, Outer)]
    if len(outers) == len(uses):
        outer = outers[0]
        if len(outers) > 1:  # further uses are further positions
            out, into = (torch.cat([getattr(use, name) for use in outers], 1) for name in ("out", "into"))
            outer = Outer(out, into, outer.shape, outer.flipped)
        return _single(outer, requests) if outer.positions == 1 else ways.choose(outer, requests)
    like = next(use.gradients for use in uses if isinstance(use, Dense))
    count, *shape = like.shape
    size = _together(math.prod(shape), like)

    def together(start: int) -> Tensor:
        stop = start + size
        each = [u.part(start, stop).formed() if isinstance(u, Outer) else u.gradients[start:stop] for u in uses]
        return sum(each[1:], each[0])

    return _summed(_answers(together(start), requests) for start in range(0, count, size))


@functools.lru_cache(maxsize=256)
def _vector(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The fixed vector that gradients are multiplied with for a picture of them: entries of one size, no pattern."""
    return torch.cos(1.7 * torch.arange(size, dtype=torch.float64) ** 1.1 + 0.3).to(device, dtype)


def probe_of(use: Outer | Dense | Tensor, flipped: bool | None = None) -> Tensor:
    """A cheap picture of the summed gradient: times a fixed vector along the inputs, or all of it where it is small.

    Of the gradient itself (a tensor) with `flipped` telling how its matrix lies, None for all of it.
    """
    if isinstance(use, Outer):
        along = use.into @ _vector(use.into.shape[2], use.into.dtype, use.into.device)
        return along.flatten() @ use.out.flatten(0, 1)
    if isinstance(use, Dense):
        return use.gradients.sum(0).flatten()
    if flipped is None:
        return use.flatten()
    matrix = use.mT if flipped else use.flatten(1)
    return matrix @ _vector(matrix.shape[1], matrix.dtype, matrix.device)


def fetched(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Tensors as arrays in double precision. However many they are, a GPU is waited for once."""
    found: dict[int, np.ndarray] = {}
    for device in {x.device for x in tensors}:
        mine = {place: x for place, x in enumerate(tensors) if x.device == device}
        flat = torch.cat([x.reshape(-1).double() for x in mine.values()]).numpy(force=True)
        ends = np.cumsum([x.numel() for x in mine.values()])
        for (place, x), part in zip(mine.items(), np.split(flat, ends[:-1]), strict=True):
            found[place] = part.reshape(x.shape)
    return [found[place] for place in range(len(tensors))]


def full(x: Tensor) -> Tensor:
    """A tensor in single precision at least: squares of half-precision numbers overflow."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def by_sample(x: Tensor, samples: int, batch_axis: int) -> Tensor | None:
    """A tensor with the samples first; None where they cannot be told. It has a last axis that counts no samples.

    (samples * k, ...) becomes (samples, k, ...); from a model with the samples second it is (k * samples, ...).
    """
    if x.ndim > batch_axis + 1 and x.shape[batch_axis] == samples:
        return x.movedim(batch_axis, 0)
    if x.ndim and x.shape[0] == samples:
        return x
    if x.ndim > 1 and x.shape[0] and x.shape[0] % samples == 0:
        each = x.shape[0] // samples
        if batch_axis == 1:
            return x.reshape(each, samples, *x.shape[1:]).movedim(1, 0)
        return x.reshape(samples, each, *x.shape[1:])
    return None


def _runs_as(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of one of these kinds and has its forward pass: a subclass may have one of its own."""
    same = lambda kind: all(
        getattr(type(module), f, None) is getattr(kind, f, None) for f in ("forward", "_conv_forward")
    )
    return "forward" not in vars(module) and any(isinstance(module, kind) and same(kind) for kind in kinds)


def per_sample(
    module: nn.Module, received: Tensor, back: Tensor, samples: int, batch_axis: int, leaves: Sequence[str]
) -> dict[str, Outer | Dense] | None:
    """Per-sample gradients in the parameters of a layer of a known kind; None where it has to be run again."""
    flipped = type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")
    dense, norm = flipped or _runs_as(module, nn.Linear), _runs_as(module, nn.LayerNorm, nn.RMSNorm)
    convolution = _plain_convolution(module) and back.ndim == module.weight.ndim
    if not (dense or norm or convolution):
        return None
    received = received.to(back.dtype) if received.is_floating_point() else received  # as autocast did
    a, b = (by_sample(x, samples, batch_axis) for x in (received, back))
    if a is None or b is None:
        raise ValueError(
            f"its input of shape {tuple(received.shape)} cannot be told apart by sample: the batch has {samples}"
        )
    a, b = full(a), full(b)
    if dense:
        out, into = b.reshape(samples, -1, b.shape[-1]), a.reshape(samples, -1, a.shape[-1])
        shape = tuple(module.weight.shape)
        found = {"weight": lambda: Outer(out, into, shape, flipped), "bias": lambda: Dense(out.sum(1))}
    elif convolution:
        out = b.flatten(2).mT
        found = {
            "weight": lambda: Outer(out, _patches(module, a), tuple(module.weight.shape)),
            "bias": lambda: Dense(out.sum(1)),
        }
    else:
        last = tuple(module.normalized_shape)
        normed = functional.layer_norm if isinstance(module, nn.LayerNorm) else functional.rms_norm
        total = lambda x: Dense(x.reshape(samples, -1, *last).sum(1))
        where = {"eps": module.eps}
        found = {"weight": lambda: total(b * normed(a, last, **where)), "bias": lambda: total(b)}
    return {leaf: found[leaf]() for leaf in leaves} if set(leaves) <= set(found) else None


def _plain_convolution(module: nn.Module) -> bool:
    return (
        _runs_as(module, nn.Conv1d, nn.Conv2d)
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _patches(module: Any, image: Tensor) -> Tensor:
    """What each output position of a convolution sees: (samples, positions, channels * kernel)."""
    facts = [module.kernel_size, module.dilation, module.padding, module.stride]
    if isinstance(module, nn.Conv1d):
        image = image[:, :, None]
        facts = [(fill, *given) for fill, given in zip((1, 1, 0, 1), facts, strict=True)]
    return functional.unfold(image, *facts).mT


def replayed(
    module: nn.Module, args: tuple, kwargs: dict, back: Sequence[Tensor | None], samples: int, batch_axis: int,
    leaves: Sequence[str], precision: AbstractContextManager,
) -> dict[str, Dense]:  # fmt: skip
    """Per-sample gradients of any module by running it again on each sample: vmap of its own backward pass.

    `precision`: the autocast that it ran under.
    """
    values = {leaf: module.get_parameter(leaf).detach() for leaf in leaves}
    needed = 4 * samples * sum(v.numel() for v in values.values())
    if needed > MOST_REPLAYED:
        raise ValueError(f"its per-sample gradients would take {needed / 2**30:.1f} GiB; use smaller batches")
    rest = {n: p.detach() for n, p in [*module.named_parameters(), *module.named_buffers()] if n not in values}
    flat, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    axis = lambda x: next((k for k in (batch_axis, 0) if x.ndim > k and x.shape[k] == samples), None)
    axes = [axis(x) if isinstance(x, Tensor) else None for x in flat]
    if all(k is None for k in axes):
        raise ValueError(f"none of its inputs has the {samples} samples of the batch along an axis")
    moving = [x.detach() for x, k in zip(flat, axes, strict=True) if k is not None]
    places = [k for k in axes if k is not None]
    kept = [k for k, b in enumerate(back) if b is not None]
    signals = [b for b in back if b is not None]
    signal_axes = [axis(b) for b in signals]
    if any(k is None for k in signal_axes):
        raise ValueError(f"one of its outputs does not have the {samples} samples of the batch along an axis")

    def outputs(params: dict[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        given, each = iter(inputs), list(flat)
        for position, k in enumerate(axes):
            if k is not None:
                each[position] = next(given).unsqueeze(k)
        again, named = torch.utils._pytree.tree_unflatten(each, spec)
        out = torch.func.functional_call(module, {**rest, **params}, again, named)
        tensors = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, Tensor)]
        return [tensors[k] for k in kept]

    def one(inputs: list[Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
        _, pull = torch.func.vjp(lambda params: outputs(params, inputs), values)
        return pull([b.unsqueeze(k) for b, k in zip(cotangents, signal_axes, strict=True)])[0]

    size = max(1, MEMORY // max(1, 4 * sum(v.numel() for v in values.values())))
    together = torch.vmap(one, in_dims=(places, signal_axes), chunk_size=size, randomness="different")
    with precision, warnings.catch_warnings():  # of what vmap does one by one
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = together(moving, signals)
    return {leaf: Dense(full(found[leaf])) for leaf in leaves}
