"""Candidate axes: axes of equal length, parts of fused axes, attention heads and RoPE pairs."""

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from undertow.torch._copies import trainable
from undertow.torch.census.axes import Axis

__all__ = ["Heads", "Level", "attention_heads", "levels", "owner", "plain_axes", "whole_parameters"]

FUSED_NAMES = ("in_proj", "c_attn", "qkv", "query_key_value", "gate_up", "kv_proj")
"""Names of parameters that hold queries, keys and values (or a gate and the values it multiplies) in a row."""


@dataclass(frozen=True)
class Heads:
    """Sizes of an attention module, from its attributes."""

    module: str
    heads: int
    key_heads: int
    width: int
    """Width of one head."""
    rotary: int
    """Number of entries of a head that RoPE rotates, if it rotates any."""


@dataclass(frozen=True, eq=False)
class Level:
    """Axes with the same number of generators, between which symmetries are searched."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of generators."""
        return self.axes[0].size


def owner(model: nn.Module, parameter: str) -> tuple[str, nn.Module, str]:
    """Return the name of the module that holds a parameter, the module, and the name of the parameter in it."""
    path, _, leaf = parameter.rpartition(".")
    return path, model.get_submodule(path), leaf


def _role(model: nn.Module, parameter: str, axis: int, dimensions: int) -> str:
    _, module, leaf = owner(model, parameter)
    kind = type(module).__name__
    if dimensions < 2:
        return "gain" if "norm" in kind.lower() and leaf != "bias" else "bias"
    backwards = kind == "Conv1D" or isinstance(module, nn.modules.conv._ConvTransposeNd | nn.Embedding)
    return ("in", "out")[(axis == 0) != backwards] if axis < 2 else "kernel"


def _shifts(model: nn.Module, parameter: str, role: str) -> tuple[float, ...]:
    """Return the offsets to try: norms of other libraries than PyTorch may compute with 1 + weight."""
    _, module, _ = owner(model, parameter)
    return (0.0, 1.0) if role == "gain" and not type(module).__module__.startswith("torch.nn") else (0.0,)


def plain_axes(model: nn.Module) -> list[Axis]:
    """Return every axis of every trainable parameter, one generator per index."""
    axes = []
    for name, parameter in trainable(model).items():
        for axis, length in enumerate(parameter.shape):
            role = _role(model, name, axis, parameter.ndim)
            for shift in _shifts(model, name, role):
                axes.append(Axis(name, axis, np.arange(length)[:, None], length, parameter.ndim, shift, role))
    return [axis for axis in axes if axis.length > 1 and axis.role != "kernel"]


def _fused(model: nn.Module, axis: Axis) -> bool:
    """Return whether an axis may hold several outputs in a row: by name, or if the layer triples its width."""
    if axis.role not in ("out", "bias") or "lora_" in axis.parameter:
        return False
    _, module, _ = owner(model, axis.parameter)
    shapes = [tuple(p.shape) for p in module.parameters(recurse=False) if p.ndim == 2]
    tripled = any(max(shape) == 3 * min(shape) == axis.length for shape in shapes)
    return tripled or any(word in axis.parameter.lower() for word in FUSED_NAMES)


def _parts(heads: list[Heads], name: str, length: int) -> list[np.ndarray]:
    """Return the parts of a fused axis: queries, keys and values, or a gate and the values it multiplies."""
    indices = np.arange(length)
    for h in heads:
        wide, narrow = h.heads * h.width, h.key_heads * h.width
        if name.startswith(h.module) and length == wide + 2 * narrow:
            if "query_key_value" in name and wide == narrow:  # head by head (GPT-NeoX, BLOOM)
                return list(indices.reshape(h.heads, 3, h.width).transpose(1, 0, 2).reshape(3, wide))
            return np.split(indices, [wide, wide + narrow])
    parts = 2 if "gate_up" in name else 3
    return np.split(indices, parts) if length % parts == 0 else [indices]


def attention_heads(model: nn.Module) -> list[Heads]:
    """Return the sizes of the modules that have attributes for the number and the width of their heads."""
    attentions = []
    for name, module in model.named_modules():
        sources = (module, getattr(module, "config", None))
        width_names = ("head_dim", "attention_head_size", "head_size")
        has_width = any(isinstance(getattr(module, key, None), int) for key in width_names)
        heads, width = _integer(sources, "num_heads", "num_attention_heads"), _integer(sources, *width_names)
        if not has_width or not heads or not width:
            continue
        key_heads = _integer(sources, "num_key_value_heads")
        key_heads = key_heads or heads // (_integer(sources, "num_key_value_groups") or 1)
        if heads % key_heads == 0:
            attentions.append(Heads(name, heads, key_heads, width, _integer(sources, "rotary_ndims") or width))
    return attentions


def _integer(sources: tuple[object, ...], *names: str) -> int | None:
    """Return the first of these attributes that is an integer, None if there is none."""
    for source in sources:
        for name in names:
            value = getattr(source, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def levels(model: nn.Module) -> list[Level]:
    """Return the levels, finest first: axes of equal length over the whole model, then those inside each attention.

    Scales of whole parameters (`whole_parameters`) are searched separately.
    """
    plain = plain_axes(model)
    lengths = {axis.length for axis in plain}
    by_size: dict[int, list[Axis]] = {}
    for axis in plain:
        by_size.setdefault(axis.length, []).append(axis)
        for parts in (2, 3):
            length = axis.length // parts
            if axis.length % parts == 0 and length in lengths and length > 1 and _fused(model, axis):
                pieces = [replace(axis, index=axis.index[k * length : (k + 1) * length]) for k in range(parts)]
                by_size.setdefault(length, []).extend(pieces)
    in_order = [Level(f"length {size}", tuple(by_size[size])) for size in sorted(by_size, reverse=True)]
    for heads in attention_heads(model):
        in_order += _attention_levels(heads, plain)
    return in_order


def _attention_levels(h: Heads, plain: list[Axis]) -> list[Level]:
    """Return the levels inside one attention module: groups of query heads, RoPE pairs, whole heads."""
    inside = [axis for axis in plain if axis.parameter.startswith(f"{h.module}." if h.module else "")]
    wide, narrow = h.heads * h.width, h.key_heads * h.width
    queries, keys, interleaved = _query_and_key_axes(h, inside)
    numbers = np.arange(wide).reshape(h.key_heads, h.heads // h.key_heads, h.width)
    group = numbers.transpose(0, 2, 1).reshape(narrow, -1)
    both = lambda index, fold: (
        [_combined(a, group[index].reshape(len(index), -1), fold) for a in queries]
        + [_combined(a, index, fold) for a in keys]
    )
    named_axes = []
    if wide != narrow:
        named_axes.append(("groups of heads", [_combined(a, group, "group") for a in queries] + keys))
    elif interleaved:
        named_axes.append(("parts of heads", queries))
    each = np.arange(narrow).reshape(h.key_heads, h.width)
    if h.rotary < h.width:
        rest = each[:, h.rotary :].reshape(-1, 1)
        named_axes.append(("entries without RoPE", both(rest, "group" if wide != narrow else "")))
    if h.rotary % 2 == 0:
        rotated = each[:, : h.rotary]
        half = rotated.reshape(h.key_heads, 2, -1).transpose(0, 2, 1).reshape(-1, 2)
        for pairs in (half, rotated.reshape(-1, 2)):
            named_axes.append(("pairs", both(pairs, "pair")))
    gains = [axis for axis in inside if axis.length == h.width and axis.role == "gain"]
    if gains:
        named_axes += _gain_levels(h, gains, queries, keys)
    return [Level(f"{h.module}: {name}", tuple(axes)) for name, axes in named_axes if axes and axes[0].size > 1]


def _query_and_key_axes(h: Heads, inside: list[Axis]) -> tuple[list[Axis], list[Axis], bool]:
    """Return axes as long as all query heads and all key heads, and whether fused ones are interleaved by head."""
    wide, narrow = h.heads * h.width, h.key_heads * h.width
    queries, keys, interleaved = [], [], False
    for axis in inside:
        if axis.length == wide:
            queries.append(axis)
        if axis.length == narrow != wide:
            keys.append(axis)
        if axis.length == wide + 2 * narrow:
            parts = _parts([h], axis.parameter, axis.length)
            interleaved = interleaved or bool(np.any(np.diff(parts[0]) != 1))
            pieces = [replace(axis, index=part[:, None]) for part in parts]
            queries += pieces[:1] if wide != narrow else pieces
            keys += pieces[1:] if wide != narrow else []
    return queries, keys, interleaved


def _gain_levels(h: Heads, gains: list[Axis], queries: list[Axis], keys: list[Axis]) -> list[tuple[str, list[Axis]]]:
    """Return the levels of an attention with norms of queries and keys: pairs of gains, and whole heads."""
    named_axes = []
    if h.width % 2 == 0:
        for pairs in (np.arange(h.width).reshape(2, -1).T, np.arange(h.width).reshape(-1, 2)):
            named_axes.append(("pairs of gains", [_combined(a, pairs, "pair") for a in gains]))
    whole = lambda count: np.arange(count * h.width).reshape(count, -1)
    out = lambda axes: [axis for axis in axes if axis.role in ("out", "bias")]
    named_axes.append(("heads", [_combined(a, whole(h.heads), "head") for a in out(queries)]))
    if h.heads != h.key_heads:
        named_axes.append(("heads", [_combined(a, whole(h.key_heads), "head") for a in out(keys)]))
    return named_axes


def _combined(axis: Axis, index: np.ndarray, fold: str) -> Axis:
    """Return the axis with the indices in each row of `index` moving together."""
    return replace(axis, index=axis.index[:, 0][index].reshape(len(index), -1), fold=fold)


def whole_parameters(model: nn.Module) -> list[Axis]:
    """Return whole parameters as axes with one generator; fused queries, keys and values as their parts."""
    axes = []
    heads = attention_heads(model)
    for name, parameter in trainable(model).items():
        shape = tuple(parameter.shape) or (1,)
        axis = int(np.argmax(shape))
        role = _role(model, name, axis, parameter.ndim)
        whole = Axis(name, axis, np.arange(shape[axis])[None], shape[axis], parameter.ndim, 0.0, role, "whole")
        pieces = _parts(heads, name, shape[axis]) if _fused(model, whole) else [whole.index[0]]
        for shift in _shifts(model, name, role):
            for piece in pieces:
                axes.append(replace(whole, index=piece[None], shift=shift, role="whole"))
    return axes
