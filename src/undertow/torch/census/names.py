"""Names of symmetries, from the layers that they connect."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.candidates import Heads, is_bias, owner

__all__ = ["name_symmetry", "names_of_axes"]

LAYER_SCALE_NAMES = ("layer_scale", "layerscale", "gamma", "lambda")
"""Parts of the names of vectors that multiply the outputs of a branch, or of the classes of modules that hold them."""


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
    if any(_is_layer_scale(model, axis) for axis in axes):
        return "LayerScale"
    if all(_state_space(model, axis) for axis in axes) and (symmetry.block > 1 or "in" not in roles):
        return "state space low rank" if symmetry.block > 1 else "state space"
    written = [axis for axis in symmetry.minus if axis.role == "out"]
    within = lambda axis: [h for h in heads if axis.parameter.startswith(f"{h.module}." if h.module else "")]
    attention = _attentions(model, axes)
    if "in" not in roles and (symmetry.block > 1 or attention or any(map(within, axes))):
        pairs = "pair" in folds or all(axis.index.shape[1] % 2 == 0 for axis in axes)
        return "QK on RoPE pairs" if pairs else "QK"
    if written and any(h.width == symmetry.block or "group" in folds for h in within(written[0])):
        return "OV"
    if written and attention and symmetry.block > 1:
        return "MLA low rank" if _low_rank(symmetry) else "OV"
    if symmetry.block > 1:
        return "GL"
    gated = written and _gated(model, symmetry, written[0])
    if all(axis.by_matrix for axis in axes if axis.role != "bias") and any(axis.dimensions == 3 for axis in axes):
        return "expert, up against down" if gated else "expert"
    return "up against down" if gated else "rescaling"


def _is_layer_scale(model: nn.Module, axis: Axis) -> bool:
    """Return whether an axis is a vector that multiplies the outputs of a branch."""
    _, module, leaf = owner(model, axis.parameter)
    size = getattr(module, leaf).numel()
    words = type(module).__name__, leaf
    named = any(word in text.lower() for text in words for word in LAYER_SCALE_NAMES)
    return named and size == axis.length and not is_bias(axis.parameter)


def _state_space(model: nn.Module, axis: Axis) -> bool:
    """Return whether an axis is in a layer of a state space model, which has the logarithm of its decay rates."""
    parts = axis.parameter.split(".")[:-1]
    modules = [model.get_submodule(".".join(parts[:k])) for k in range(len(parts) + 1)]
    return any(isinstance(getattr(module, "A_log", None), nn.Parameter) for module in modules)


def _attentions(model: nn.Module, axes: tuple[Axis, ...]) -> bool:
    """Return whether all axes are in one module that computes attention, by the name of its class."""
    paths = {axis.parameter.rpartition(".")[0] for axis in axes}
    parts = [path.split(".") if path else [] for path in paths]
    common = 0
    while all(len(p) > common and p[common] == parts[0][common] for p in parts):
        common += 1
    above = [model.get_submodule(".".join(parts[0][:k])) for k in range(common + 1)]
    return any("attention" in type(module).__name__.lower() for module in above[-2:])


def _low_rank(symmetry: Symmetry) -> bool:
    """Return whether one of the two factors of a low-rank product is against the other, by their names."""
    first = all("_a" in axis.parameter for axis in symmetry.minus)
    return first and all("_b" in axis.parameter for axis in symmetry.plus)


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


def names_of_axes(axes: Sequence[Axis]) -> tuple[str, ...]:
    """Return the names of axes, without parts of one that is there as a whole or as a longer part."""
    longest = sorted(axes, key=lambda axis: -axis.index.size)
    seen: dict[tuple[str, int], set[int]] = {}
    kept = []
    for axis in longest:
        places = seen.setdefault((axis.parameter, axis.axis), set())
        new = set(axis.index.reshape(-1).tolist())
        if not new <= places:
            kept.append(axis)
            places |= new
    return tuple(dict.fromkeys(str(axis) for axis in axes if axis in kept))
