"""Axes of parameters, and the relations between them that are symmetries.

A symmetry of a network scales (or mixes) the indices along an axis of one parameter against those of another. An
`Axis` names which: the parameter, the axis, and for each of n generators the indices that move together.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Axis", "Relation", "fold", "move", "unfold"]


@dataclass(frozen=True, eq=False)
class Axis:
    """Indices along an axis of a parameter: row i of `index` moves with generator i.

    >>> import numpy as np
    >>> from undertow.torch import Axis
    >>> print(Axis("c_attn.weight", 1, np.arange(4, 8)[:, None], length=12))
    c_attn.weight[:, 4:8]
    """

    parameter: str
    axis: int
    index: np.ndarray
    """Integers, (generators, indices that move together)."""
    length: int
    """Of the axis."""
    dimensions: int = 2
    """Of the parameter."""
    shift: float = 0.0
    """The layer computes with parameter + shift (Gemma's norms: 1)."""
    role: str = "out"
    """What the axis is in its layer: "out", "in", "bias", "gain" or "whole"."""
    fold: str = ""
    """How indices were put together: "", "group" (of heads), "pair" (of RoPE), "head" or "whole"."""

    @property
    def size(self) -> int:
        """The number of generators."""
        return self.index.shape[0]

    def keys(self, row: int) -> list[tuple[str, int, int]]:
        """The rows of the parameter that generator `row` acts on."""
        return [(self.parameter, self.axis, int(k)) for k in self.index[row]]

    def __str__(self) -> str:
        used = np.unique(self.index)
        name = self.parameter if not self.shift else f"({self.shift:g} + {self.parameter})"
        if len(used) == self.length and self.role == "whole":
            return name
        part = "" if len(used) == self.length else f"{used[0]}:{used[-1] + 1}"
        if used[-1] - used[0] >= len(used):
            part = f"{len(used)} of {part or self.length}"
        if self.dimensions < 2:
            return name + (f"[{part}]" if part else "")
        places = [":"] * self.dimensions
        places[self.axis] = part or "i"
        return f"{name}[{', '.join(places)}]"


@dataclass(frozen=True, eq=False)
class Relation:
    """A symmetry: `plus` times exp(amount), `minus` times exp(-amount), for each of `size` generators.

    With `block` > 1 it is GL(block) on each of size/block blocks: plus times P, minus times P^-1.
    """

    kind: str
    """What it is called: "rescaling", "GL", "gain", "QK", "OV", "RoPE pairs", "up/down", "LoRA", "weight norm", ..."""
    plus: tuple[Axis, ...]
    minus: tuple[Axis, ...]
    block: int
    exact: bool
    """False where it holds but for the eps of a norm."""
    change: float
    """The relative change of the outputs along the orbit, in float32 on randomised weights."""

    @property
    def size(self) -> int:
        """The number of indices that move."""
        return self.plus[0].size

    @property
    def generators(self) -> int:
        """The number of independent charges."""
        return self.size // self.block * (self.block * (self.block + 1) // 2)

    def blocks(self, most: int) -> list[int]:
        """The sizes up to `most` that blocks of the relation could have, largest first."""
        return [k for k in range(min(most, self.size), 0, -1) if self.size % k == 0]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Both sides."""
        return self.plus + self.minus

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that it moves."""
        return tuple(dict.fromkeys(axis.parameter for axis in self.axes))

    @property
    def shifted(self) -> bool:
        """Whether it moves a parameter that the layer uses with an offset: weight decay then pulls elsewhere."""
        return any(axis.shift for axis in self.axes)

    @property
    def name(self) -> str:
        """What it is, in words."""
        group = f"{self.size // self.block} x GL({self.block})" if self.block > 1 else f"{self.size} scales"
        plus, minus = (", ".join(map(str, side)) for side in (self.plus, self.minus))
        where = f"{minus} against {plus}" if self.minus else plus
        return f"{self.kind}, {group}: {where}" + ("" if self.exact else " (but for eps)")

    def __str__(self) -> str:
        return self.name


def unfold(tensor: Tensor, axis: Axis) -> Tensor:
    """The indices of an axis as rows: (generators, together, rest)."""
    rows = tensor.reshape(1) if tensor.ndim == 0 else tensor
    rows = rows.movedim(axis.axis, 0).reshape(axis.length, -1)
    first = int(axis.index[0, 0])
    if axis.index.shape[1] == 1 and np.array_equal(axis.index[:, 0], np.arange(first, first + axis.size)):
        return rows[first : first + axis.size, None]  # without a copy
    return rows[torch.as_tensor(axis.index, device=tensor.device)]


def fold(tensor: Tensor, axis: Axis, rows: Tensor) -> Tensor:
    """A copy of the tensor with those rows in their place."""
    shape = (1,) if tensor.ndim == 0 else tuple(tensor.shape)
    moved = tensor.reshape(shape).movedim(axis.axis, 0)
    flat = moved.reshape(axis.length, -1).clone()
    flat[torch.as_tensor(axis.index, device=tensor.device).reshape(-1)] = rows.reshape(-1, flat.shape[1])
    return flat.reshape(moved.shape).movedim(0, axis.axis).reshape(tensor.shape).contiguous()


def move(values: Mapping[str, Tensor], relation: Relation, transform: Tensor, *, gradient: bool = False) -> dict:
    """The parameters of a relation moved along its orbit; gradients (and momentum) move the other way.

    `transform`: (generators,) factors, or (blocks, block, block) matrices P. plus -> P'plus, minus -> P^-1 minus along
    the axis; a gradient moves by P^-T. Only the tensors that move are in the answer.
    """
    if transform.ndim == 1:
        there, back = transform, 1 / transform
    else:
        there, back = transform.mT, torch.linalg.inv(transform)
    if gradient:
        there, back = (1 / there, 1 / back) if transform.ndim == 1 else (back, there)
    moved: dict[str, Tensor] = {}
    for side, by in ((relation.plus, there), (relation.minus, back)):
        for axis in side:
            now = moved.get(axis.parameter, values[axis.parameter])
            offset = 0.0 if gradient else axis.shift
            rows = unfold(now, axis) + offset
            by = by.to(rows)
            if transform.ndim == 1:
                rows = rows * by[:, None, None]
            else:
                blocks = rows.reshape(by.shape[0], by.shape[1], math.prod(rows.shape[1:]))
                rows = (by @ blocks).reshape(rows.shape)
            moved[axis.parameter] = fold(now, axis, rows - offset)
    return moved
