"""What a relation is called: read off from the layers it connects."""

from dataclasses import replace

from torch import nn

from undertow.torch.census.axes import Axis, Relation
from undertow.torch.census.hints import Heads, owner

__all__ = ["name_relation"]


def name_relation(model: nn.Module, heads: list[Heads], relation: Relation) -> Relation:
    """The relation with its kind, and its sides in order: what is read later is plus, what is written minus."""
    roles = lambda side: {axis.role for axis in side}
    plus, minus = relation.plus, relation.minus
    inner = lambda side: "in" in roles(side)
    earlier = lambda: _first(model, minus) < _first(model, plus)
    if minus and not inner(plus) and (inner(minus) or earlier()):
        plus, minus = minus, plus
    ordered = replace(relation, plus=plus, minus=minus)
    kind = _kind(model, heads, ordered)
    if kind == "rescaling" and not inner(plus):  # a depthwise convolution reads and writes on one axis
        ordered = replace(relation, plus=minus, minus=plus)
    return replace(ordered, kind=kind)


def _first(model: nn.Module, side: tuple[Axis, ...]) -> int:
    names = [name for name, _ in model.named_parameters()]
    return min(names.index(axis.parameter) * 10**6 + int(axis.index.min()) for axis in side)


def _kind(model: nn.Module, heads: list[Heads], relation: Relation) -> str:
    axes, folds = relation.axes, {axis.fold for axis in relation.axes}
    roles = {axis.role for axis in axes}
    if all("lora_" in axis.parameter for axis in axes) and relation.minus:
        return "LoRA"
    if roles == {"whole"}:
        return "whole scale"
    if not relation.minus:
        normed = "parametrizations" in axes[0].parameter or axes[0].parameter.endswith("weight_v")
        return "weight norm" if normed and relation.exact else "scale into a norm"
    if roles == {"gain"}:
        return "QK gains on RoPE pairs" if "pair" in folds else "QK gains"
    if "gain" in roles:
        return "gain against readers"
    within = lambda axis: [h for h in heads if axis.parameter.startswith(f"{h.module}." if h.module else "")]
    if "in" not in roles and (relation.block > 1 or any(map(within, axes))):
        return "QK on RoPE pairs" if "pair" in folds else "QK"
    written = [axis for axis in relation.minus if axis.role == "out"]
    if written and any(h.width == relation.block or "group" in folds for h in within(written[0])):
        return "OV"
    if relation.block > 1:
        return "GL"
    return "up against down" if written and _gated(model, relation, written[0]) else "rescaling"


def _gated(model: nn.Module, relation: Relation, written: Axis) -> bool:
    """Whether another matrix beside the one that writes has the same shape and does not move: a gate."""
    if written.index.size < written.length:
        return True  # gate and up are one layer
    path, module, leaf = owner(model, written.parameter)
    beside = model.get_submodule(path.rpartition(".")[0])
    shape = getattr(module, leaf).shape
    readers = {axis.parameter for axis in relation.plus}
    for name, child in beside.named_children():
        weight = getattr(child, "weight", None)
        same = weight is not None and weight.shape == shape and not isinstance(beside, nn.Sequential)
        if same and f"{path.rpartition('.')[0]}.{name}.weight".lstrip(".") not in {*readers, written.parameter}:
            return True
    return False
