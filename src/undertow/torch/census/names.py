"""Names of symmetries, from the layers that they connect."""

from dataclasses import replace

from torch import nn

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.candidates import Heads, owner

__all__ = ["name_symmetry"]


def name_symmetry(model: nn.Module, heads: list[Heads], symmetry: Symmetry) -> Symmetry:
    """Return the symmetry with its kind, and its sides in order: weights that write are minus, those that read plus."""
    roles = lambda side: {axis.role for axis in side}
    plus, minus = symmetry.plus, symmetry.minus
    inner = lambda side: "in" in roles(side)
    earlier = lambda: _first_position(model, minus) < _first_position(model, plus)
    if minus and not inner(plus) and (inner(minus) or earlier()):
        plus, minus = minus, plus
    ordered = replace(symmetry, plus=plus, minus=minus)
    kind = _kind(model, heads, ordered)
    if kind == "rescaling" and not inner(plus):  # a depthwise convolution reads and writes on one axis
        ordered = replace(symmetry, plus=minus, minus=plus)
    return replace(ordered, kind=kind)


def _first_position(model: nn.Module, side: tuple[Axis, ...]) -> int:
    names = [name for name, _ in model.named_parameters()]
    return min(names.index(axis.parameter) * 10**6 + int(axis.index.min()) for axis in side)


def _kind(model: nn.Module, heads: list[Heads], symmetry: Symmetry) -> str:
    axes, folds = symmetry.axes, {axis.fold for axis in symmetry.axes}
    roles = {axis.role for axis in axes}
    if all("lora_" in axis.parameter for axis in axes) and symmetry.minus:
        return "LoRA"
    if roles == {"whole"}:
        return "whole scale"
    if not symmetry.minus:
        normed = "parametrizations" in axes[0].parameter or axes[0].parameter.endswith("weight_v")
        return "weight norm" if normed and symmetry.exact else "scale into a norm"
    if roles == {"gain"}:
        return "QK gains on RoPE pairs" if "pair" in folds else "QK gains"
    if "gain" in roles:
        return "gain against readers"
    within = lambda axis: [h for h in heads if axis.parameter.startswith(f"{h.module}." if h.module else "")]
    if "in" not in roles and (symmetry.block > 1 or any(map(within, axes))):
        return "QK on RoPE pairs" if "pair" in folds else "QK"
    written = [axis for axis in symmetry.minus if axis.role == "out"]
    if written and any(h.width == symmetry.block or "group" in folds for h in within(written[0])):
        return "OV"
    if symmetry.block > 1:
        return "GL"
    return "up against down" if written and _gated(model, symmetry, written[0]) else "rescaling"


def _gated(model: nn.Module, symmetry: Symmetry, written: Axis) -> bool:
    """Return whether another matrix beside `written` has the same shape and does not move, as a gate does."""
    if written.index.size < written.length:
        return True  # gate and up are one layer
    path, module, leaf = owner(model, written.parameter)
    parent = model.get_submodule(path.rpartition(".")[0])
    shape = getattr(module, leaf).shape
    readers = {axis.parameter for axis in symmetry.plus}
    for name, child in parent.named_children():
        weight = getattr(child, "weight", None)
        same = weight is not None and weight.shape == shape and not isinstance(parent, nn.Sequential)
        if same and f"{path.rpartition('.')[0]}.{name}.weight".lstrip(".") not in {*readers, written.parameter}:
            return True
    return False
