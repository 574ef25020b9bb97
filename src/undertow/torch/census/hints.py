"""Which axes of a network might move together: all axes of one length, parts of fused ones, heads and RoPE pairs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from undertow.torch._copies import trainable
from undertow.torch.census.axes import Axis

__all__ = ["Heads", "Level", "atoms", "attention_heads", "levels", "owner", "plain_axes"]


FUSED = ("in_proj", "c_attn", "qkv", "query_key_value", "gate_up", "kv_proj")
"""Names of parameters that hold queries, keys and values (or a gate and what it gates) one after the other."""


@dataclass(frozen=True)
class Heads:
    """What an attention module says of itself."""

    module: str
    heads: int
    key_heads: int
    width: int
    """Of one head."""
    rotary: int
    """How much of a head RoPE turns, if it does; the rest is left as it is."""


@dataclass(frozen=True, eq=False)
class Level:
    """Axes with the same number of generators, between which relations are looked for."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """The number of generators."""
        return self.axes[0].size


def owner(model: nn.Module, parameter: str) -> tuple[str, nn.Module, str]:
    """The module that holds a parameter: its name, itself, and what it calls the parameter."""
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
    """Norms of other libraries may compute with 1 + weight."""
    _, module, _ = owner(model, parameter)
    return (0.0, 1.0) if role == "gain" and not type(module).__module__.startswith("torch.nn") else (0.0,)


def plain_axes(model: nn.Module) -> list[Axis]:
    """Every axis of every trainable parameter, as it is."""
    found = []
    for name, parameter in trainable(model).items():
        for axis, length in enumerate(parameter.shape):
            role = _role(model, name, axis, parameter.ndim)
            for shift in _shifts(model, name, role):
                found.append(Axis(name, axis, np.arange(length)[:, None], length, parameter.ndim, shift, role))
    return [axis for axis in found if axis.length > 1 and axis.role != "kernel"]


def _fused(model: nn.Module, axis: Axis) -> bool:
    """Whether an axis may hold several outputs one after the other: by name, or where a layer triples its width."""
    if axis.role not in ("out", "bias") or "lora_" in axis.parameter:
        return False
    _, module, _ = owner(model, axis.parameter)
    shapes = [tuple(p.shape) for p in module.parameters(recurse=False) if p.ndim == 2]
    tripled = any(max(shape) == 3 * min(shape) == axis.length for shape in shapes)
    return tripled or any(word in axis.parameter.lower() for word in FUSED)


def _parts(heads: list[Heads], name: str, length: int) -> list[np.ndarray]:
    """The parts of a fused axis: queries, keys and values, or a gate and what it gates."""
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
    """The modules that say how many heads they have and how wide one is."""
    found = []
    for name, module in model.named_modules():
        config = getattr(module, "config", None)

        def said(*names: str, module: Any = module, config: Any = config) -> int | None:
            for source in (module, config):
                for key in names:
                    value = getattr(source, key, None)
                    if isinstance(value, int) and not isinstance(value, bool):
                        return value
            return None

        widths = ("head_dim", "attention_head_size", "head_size")
        own = [key for key in widths if isinstance(getattr(module, key, None), int)]
        heads, width = said("num_heads", "num_attention_heads"), said(*widths)
        if not own or not heads or not width:
            continue
        key_heads = said("num_key_value_heads") or heads // (said("num_key_value_groups") or 1)
        if heads % key_heads == 0:
            found.append(Heads(name, heads, key_heads, width, said("rotary_ndims") or width))
    return found


def levels(model: nn.Module) -> list[Level]:
    """All the levels but the last, finest first: plain ones over the whole model, then those of each attention."""
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
    found = [Level(f"length {size}", tuple(by_size[size])) for size in sorted(by_size, reverse=True)]
    for heads in attention_heads(model):
        found += _attention_levels(heads, plain)
    return found


def _attention_levels(h: Heads, plain: list[Axis]) -> list[Level]:
    """Inside one attention module: query heads in groups, RoPE pairs, whole heads."""
    inside = [axis for axis in plain if axis.parameter.startswith(f"{h.module}." if h.module else "")]
    wide, narrow = h.heads * h.width, h.key_heads * h.width
    queries, keys, apart = [], [], False
    for axis in inside:
        if axis.length == wide:
            queries.append(axis)
        if axis.length == narrow != wide:
            keys.append(axis)
        if axis.length == wide + 2 * narrow:
            parts = _parts([h], axis.parameter, axis.length)
            apart = apart or bool(np.any(np.diff(parts[0]) != 1))
            pieces = [replace(axis, index=part[:, None]) for part in parts]
            queries += pieces[:1] if wide != narrow else pieces
            keys += pieces[1:] if wide != narrow else []
    numbers = np.arange(wide).reshape(h.key_heads, h.heads // h.key_heads, h.width)
    group = numbers.transpose(0, 2, 1).reshape(narrow, -1)
    found = []
    together = lambda axis, index, fold: replace(axis, index=axis.index[:, 0][index].reshape(len(index), -1), fold=fold)
    both = lambda index, fold: (
        [together(a, group[index].reshape(len(index), -1), fold) for a in queries]
        + [together(a, index, fold) for a in keys]
    )
    if wide != narrow:
        found.append(("groups of heads", [together(a, group, "group") for a in queries] + keys))
    elif apart:
        found.append(("parts of heads", queries))
    each = np.arange(narrow).reshape(h.key_heads, h.width)
    if h.rotary < h.width:
        found.append(("what RoPE leaves", both(each[:, h.rotary :].reshape(-1, 1), "group" if wide != narrow else "")))
    if h.rotary % 2 == 0:
        turned = each[:, : h.rotary]
        half = turned.reshape(h.key_heads, 2, -1).transpose(0, 2, 1).reshape(-1, 2)
        for pairs in (half, turned.reshape(-1, 2)):
            found.append(("pairs", both(pairs, "pair")))
    gains = [axis for axis in inside if axis.length == h.width and axis.role == "gain"]
    if gains:
        if h.width % 2 == 0:
            for pairs in (np.arange(h.width).reshape(2, -1).T, np.arange(h.width).reshape(-1, 2)):
                found.append(("pairs of gains", [together(a, pairs, "pair") for a in gains]))
        whole = lambda count: np.arange(count * h.width).reshape(count, -1)
        out = lambda axes: [axis for axis in axes if axis.role in ("out", "bias")]
        found.append(("heads", [together(a, whole(h.heads), "head") for a in out(queries)]))
        if wide != narrow:
            found.append(("heads", [together(a, whole(h.key_heads), "head") for a in out(keys)]))
    return [Level(f"{h.module}: {name}", tuple(axes)) for name, axes in found if axes and axes[0].size > 1]


def atoms(model: nn.Module) -> list[Axis]:
    """Whole parameters, fused queries, keys and values in their parts: what a single scale can act on."""
    found = []
    heads = attention_heads(model)
    for name, parameter in trainable(model).items():
        shape = tuple(parameter.shape) or (1,)
        axis = int(np.argmax(shape))
        role = _role(model, name, axis, parameter.ndim)
        whole = Axis(name, axis, np.arange(shape[axis])[None], shape[axis], parameter.ndim, 0.0, role, "whole")
        pieces = _parts(heads, name, shape[axis]) if _fused(model, whole) else [whole.index[0]]
        for shift in _shifts(model, name, role):
            for piece in pieces:
                found.append(replace(whole, index=piece[None], shift=shift, role="whole"))
    return found
