"""Axes of parameters, and symmetries that scale or mix the indices along them.

A symmetry of a network scales (or mixes) the indices along an axis of one parameter against those of another. An
`Axis` names the parameter, the axis, and for each of n generators the indices that move together.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Axis", "Symmetry", "all_rows", "fold", "move", "unfold"]


@dataclass(frozen=True, eq=False)
class Axis:
    """Indices along an axis of a parameter. Row i of `index` moves with generator i.

    >>> import numpy as np
    >>> from undertow.torch import Axis
    >>> print(Axis("c_attn.weight", 1, np.arange(4, 8)[:, None], length=12))
    c_attn.weight[:, 4:8]
    """

    parameter: str
    axis: int
    index: np.ndarray
    """Integers of shape (generators, indices that move together)."""
    length: int
    """Length of the axis."""
    dimensions: int = 2
    """Number of dimensions of the parameter."""
    shift: float = 0.0
    """The layer computes with parameter + shift (1 in Gemma's norms)."""
    role: str = "out"
    """Role of the axis in its layer: "out", "in", "bias", "gain" or "whole"."""
    fold: str = ""
    """How indices are combined: "", "group" (of heads), "pair" (of RoPE), "head" or "whole"."""
    power: int = 1
    """Exponent: the indices are multiplied by exp(power * amount)."""
    matrices: int = 1
    """Number of matrices in a row along the first axis of the parameter: experts, groups of a convolution, or queries,
    keys and values that read different inputs."""
    by_matrix: bool = False
    """Whether every matrix has indices of its own. The index is then matrix * (length of the axis) + k, and `length`
    counts the indices of all matrices."""

    @property
    def size(self) -> int:
        """Number of generators."""
        return self.index.shape[0]

    def keys(self, row: int) -> list[tuple[str, int, int]]:
        """Return the rows of the parameter, or of each of its matrices, that generator `row` acts on."""
        copies = range(1 if self.by_matrix or self.axis == 0 else self.matrices)
        return [(self.parameter, self.axis, e * self.length + int(k)) for k in self.index[row] for e in copies]

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
        if self.by_matrix:
            places[0], places[self.axis] = "m", (f"i ({part})" if part else "i")
        return f"{name}[{', '.join(places)}]"


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A symmetry that multiplies `plus` by exp(amount) and `minus` by exp(-amount), for each of `size` generators.

    An axis with a power p is multiplied by exp(p amount). With `block` > 1 it is GL(block) on each of size/block
    blocks: `plus` is multiplied by P, `minus` by P^-1. `census` finds the symmetries of a network.

    >>> import numpy as np
    >>> from undertow.torch import Axis, Symmetry
    >>> rows = np.arange(4)[:, None]
    >>> written, read = Axis("up.weight", 0, rows, length=4), Axis("down.weight", 1, rows, length=4)
    >>> symmetry = Symmetry("rescaling", plus=(read,), minus=(written,), block=1, exact=True, change=0.0)
    >>> print(symmetry, symmetry.generators)
    rescaling, 4 scales: up.weight[i, :] against down.weight[:, i] 4
    """

    kind: str
    """Name of the kind: "rescaling", "GL", "gain against readers", "QK", "QK on RoPE pairs", "OV", "MLA low rank",
    "up against down", "expert", "LayerScale", "state space", "LoRA", "weight norm", "whole scale", ..."""
    plus: tuple[Axis, ...]
    minus: tuple[Axis, ...]
    block: int
    exact: bool
    """False for a symmetry that holds up to the eps of a norm."""
    change: float
    """Relative change of the outputs along the orbit, in float32 at random weights."""

    @property
    def size(self) -> int:
        """Number of indices that move."""
        return self.plus[0].size

    @property
    def generators(self) -> int:
        """Number of independent charges."""
        return self.size // self.block * (self.block * (self.block + 1) // 2)

    def block_sizes(self, largest: int) -> list[int]:
        """Return the block sizes up to `largest` that divide `size`, largest first."""
        return [k for k in range(min(largest, self.size), 0, -1) if self.size % k == 0]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of both sides, plus first."""
        return self.plus + self.minus

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the symmetry moves."""
        return tuple(dict.fromkeys(axis.parameter for axis in self.axes))

    @property
    def shifted(self) -> bool:
        """Whether a layer uses one of the parameters with an offset, so that weight decay pulls to another point."""
        return any(axis.shift for axis in self.axes)

    @functools.cached_property
    def name(self) -> str:
        """Kind, group and parameters as one line of text."""
        group = f"{self.size // self.block} x GL({self.block})" if self.block > 1 else f"{self.size} scales"
        plus, minus = (", ".join(map(str, side)) for side in (self.plus, self.minus))
        where = f"{minus} against {plus}" if self.minus else plus
        return f"{self.kind}, {group}: {where}" + ("" if self.exact else " (up to eps)")

    def __str__(self) -> str:
        return self.name


def _axis_first(tensor: Tensor, axis: Axis) -> Tensor:
    """Return a view in which the axis comes first, after the number of the matrix if the axis counts by matrix."""
    if tensor.ndim == 0:
        return tensor.reshape(1)
    if not axis.by_matrix:
        return tensor.movedim(axis.axis, 0)
    return tensor.unflatten(0, (axis.matrices, -1)).movedim((0, axis.axis + 1), (0, 1))


def all_rows(tensor: Tensor, axis: Axis) -> Tensor:
    """Return all indices along an axis, also those that do not move, as rows of a matrix."""
    return _axis_first(tensor, axis).reshape(axis.length, -1)


def unfold(tensor: Tensor, axis: Axis) -> Tensor:
    """Return the indices of an axis as rows: (generators, indices that move together, rest)."""
    rows = all_rows(tensor, axis)
    first = int(axis.index[0, 0])
    if axis.index.shape[1] == 1 and np.array_equal(axis.index[:, 0], np.arange(first, first + axis.size)):
        return rows[first : first + axis.size, None]  # without a copy
    return rows[torch.as_tensor(axis.index, device=tensor.device)]


def fold(tensor: Tensor, axis: Axis, rows: Tensor) -> Tensor:
    """Return a copy of the tensor in which the indices of an axis are replaced by `rows`."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    moved = _axis_first(result, axis)
    flat = moved.reshape(axis.length, -1)
    flat[torch.as_tensor(axis.index, device=tensor.device).reshape(-1)] = rows.reshape(-1, flat.shape[1])
    if flat.data_ptr() != moved.data_ptr():  # a copy
        moved.copy_(flat.reshape(moved.shape))
    return result


def move(
    values: Mapping[str, Tensor], symmetry: Symmetry, transform: Tensor, *, gradient: bool = False
) -> dict[str, Tensor]:
    """Return the parameters of a symmetry moved along its orbit; gradients (and momentum) move the other way.

    `transform`: factors (generators,), or matrices P of shape (blocks, block, block). Along the axis plus -> P'plus and
    minus -> P^-1 minus; a gradient moves by P^-T. The result holds only the tensors that move.
    """
    if transform.ndim == 1:
        on_plus, on_minus = transform, 1 / transform
    else:
        on_plus, on_minus = transform.mT, torch.linalg.inv(transform)
    if gradient:
        on_plus, on_minus = (1 / on_plus, 1 / on_minus) if transform.ndim == 1 else (on_minus, on_plus)
    moved: dict[str, Tensor] = {}
    for side, factor in ((symmetry.plus, on_plus), (symmetry.minus, on_minus)):
        for axis in side:
            tensor = moved.get(axis.parameter, values[axis.parameter])
            offset = 0.0 if gradient else axis.shift
            rows = unfold(tensor, axis) + offset
            matrix = factor.to(rows)
            if transform.ndim == 1:
                rows = rows * (matrix if axis.power == 1 else matrix**axis.power)[:, None, None]
            else:
                blocks = rows.reshape(matrix.shape[0], matrix.shape[1], math.prod(rows.shape[1:]))
                rows = (matrix @ blocks).reshape(rows.shape)
            moved[axis.parameter] = fold(tensor, axis, rows - offset)
    return moved
