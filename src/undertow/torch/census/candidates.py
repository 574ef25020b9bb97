"""Candidate axes: axes of equal length, parts of fused axes, attention heads and RoPE pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from undertow.torch._copies import trainable
from undertow.torch.census.axes import Axis

__all__ = [
    "Heads",
    "Level",
    "attention_heads",
    "attention_levels",
    "is_bias",
    "length_levels",
    "owner",
    "plain_axes",
    "whole_parameters",
]

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


def is_bias(parameter: str) -> bool:
    """Return whether a parameter is a bias by its name."""
    leaf = parameter.rpartition(".")[2]
    return "bias" in leaf or leaf == "beta"


def _role(model: nn.Module, parameter: str, axis: int, dimensions: int) -> str:
    _, module, leaf = owner(model, parameter)
    kind = type(module).__name__
    if dimensions < 2:
        return "gain" if "norm" in kind.lower() and leaf != "bias" else "bias"
    if dimensions > 2 and not isinstance(module, nn.modules.conv._ConvNd):  # experts, and whatever has three axes
        return "bias" if is_bias(parameter) else "in" if axis == dimensions - 1 else "out"
    backwards = kind == "Conv1D" or isinstance(module, nn.modules.conv._ConvTransposeNd | nn.Embedding)
    return ("in", "out")[(axis == 0) != backwards] if axis < 2 else "kernel"


def _shifts(model: nn.Module, parameter: str, role: str) -> tuple[float, ...]:
    """Return the offset of a parameter: norms of other libraries than PyTorch may compute with 1 + weight.

    It is 0 if the norm is zero where the weight is, and 1 if it is zero where the weight is -1. Where it cannot be
    called alone, both are returned.
    """
    _, module, leaf = owner(model, parameter)
    if role != "gain" or type(module).__module__.startswith("torch.nn"):
        return (0.0,)
    weight = getattr(module, leaf)
    vector = torch.linspace(1, 2, weight.numel(), dtype=weight.dtype, device=weight.device).expand(2, 2, -1)
    others = {name: torch.zeros_like(p) for name, p in module.named_parameters() if name != leaf}
    for shift in (0.0, 1.0):
        try:
            values = {leaf: torch.full_like(weight, -shift), **others}
            with torch.no_grad():
                out = torch.func.functional_call(module, values, (vector,))
        except Exception:  # a norm with other inputs
            return (0.0, 1.0)
        if isinstance(out, torch.Tensor) and not out.any():
            return (shift,)
    return (0.0, 1.0)


def _matrices(model: nn.Module, parameter: str) -> int:
    """Return how many matrices the first axis of a parameter holds: experts, groups, queries and keys and values."""
    _, module, leaf = owner(model, parameter)
    shape = getattr(module, leaf).shape
    if isinstance(module, nn.modules.conv._ConvNd):
        return module.groups if len(shape) > 2 and shape[1] > 1 else 1
    if isinstance(module, nn.MultiheadAttention):
        return 3 if leaf == "in_proj_weight" else 1
    experts = {p.shape[0] for p in module.parameters(recurse=False) if p.ndim == 3 and 1 not in p.shape}
    return shape[0] if len(shape) > 1 and experts == {shape[0]} else 1  # all of them have as many experts


def plain_axes(model: nn.Module) -> list[Axis]:
    """Return every axis of every trainable parameter, one generator per index.

    Axes of several matrices in a row are returned twice: one generator per index, and one per index and matrix.
    """
    axes = []
    for name, parameter in trainable(model).items():
        matrices = _matrices(model, name)
        for axis, length in enumerate(parameter.shape):
            role = _role(model, name, axis, parameter.ndim)
            if role == "kernel" or (axis == 0 and matrices == length):
                continue
            plain = Axis(name, axis, np.arange(length)[:, None], length, parameter.ndim, 0.0, role, matrices=matrices)
            axes += [replace(plain, shift=shift) for shift in _shifts(model, name, role)]
            if matrices > 1 and axis > 0:
                total = matrices * length
                axes.append(replace(plain, index=np.arange(total)[:, None], length=total, by_matrix=True))
    return [axis for axis in axes if axis.length > 1]


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
            attentions.append(
                Heads(name, heads, key_heads, width, _integer(sources, "rotary_ndims", "rotary_dim") or width)
            )
    return attentions


def _integer(sources: tuple[object, ...], *names: str) -> int | None:
    """Return the first of these attributes that is an integer, None if there is none."""
    for source in sources:
        for name in names:
            value = getattr(source, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def length_levels(model: nn.Module, plain: Sequence[Axis]) -> list[Level]:
    """Return the levels of axes (those of `plain_axes`) of equal length over the whole model, longest first.

    Scales of whole parameters (`whole_parameters`) are searched separately.
    """
    lengths = {axis.length for axis in plain}
    by_size: dict[tuple[int, bool], list[Axis]] = {}
    for axis in plain:
        by_size.setdefault((axis.length, axis.by_matrix), []).append(axis)
        for parts in (2, 3):
            length = axis.length // parts
            if (
                not axis.by_matrix
                and axis.length % parts == 0
                and length in lengths
                and length > 1
                and _fused(model, axis)
            ):
                pieces = [replace(axis, index=axis.index[k * length : (k + 1) * length]) for k in range(parts)]
                by_size.setdefault((length, False), []).extend(pieces)
    return [Level(f"length {size[0]}", tuple(by_size[size])) for size in sorted(by_size, reverse=True)]


def attention_levels(model: nn.Module, plain: Sequence[Axis]) -> list[Level]:
    """Return the levels inside each attention module: groups of heads, RoPE pairs, whole heads."""
    return [level for heads in attention_heads(model) for level in _attention_levels(heads, plain)]


def _attention_levels(h: Heads, plain: Sequence[Axis]) -> list[Level]:
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
        whole = replace(whole, matrices=_matrices(model, name))
        pieces = _parts(heads, name, shape[axis]) if _fused(model, whole) else [whole.index[0]]
        for shift in _shifts(model, name, role):
            for piece in pieces:
                axes.append(replace(whole, index=piece[None], shift=shift, role="whole"))
    return axes


def with_biases(model: nn.Module, views: Sequence[Axis]) -> list[Axis]:
    """Return the views, each followed by the biases of its layer with the same indices."""
    params = trainable(model)
    result = []
    for view in views:
        result.append(view)
        path, module, leaf = owner(model, view.parameter)
        if view.role == "in":
            continue
        for name, _ in module.named_parameters(recurse=False):
            full = f"{path}.{name}".lstrip(".")
            bias = params.get(full)
            if bias is None or name == leaf or not is_bias(full) or name.split("bias")[0] not in leaf:
                continue
            plain = replace(view, parameter=full, axis=0, dimensions=1, role="bias", matrices=1, by_matrix=False)
            if bias.ndim == 1 and len(bias) == view.length:
                result.append(plain)
            elif view.by_matrix and bias.ndim == 2 and bias.numel() == view.length:
                result.append(replace(plain, axis=1, dimensions=2, matrices=view.matrices, by_matrix=True))
    return result
