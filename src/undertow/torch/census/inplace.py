"""Moves along the orbits of many symmetries at once, in place: no second copy of a parameter is made."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undertow.torch.census.axes import Axis, Symmetry, all_rows, fold, unfold

__all__ = ["move_in_place", "multiply_along"]


class _Step(NamedTuple):
    """What one symmetry does along an axis of a parameter."""

    axis: Axis
    factor: Tensor
    """Factors of the generators, or matrices by which blocks of them are multiplied from the left."""


@torch.no_grad()
def move_in_place(params: Mapping[str, Tensor], parts: Sequence[tuple[Symmetry, Tensor, Tensor]]) -> None:
    """Move parameters along orbits, one after the other: each symmetry by its transformation, as `axes.move` does.

    The transformation of a symmetry is followed by its inverse: factors, or matrices of one block after the other.
    Scales commute: all factors along one axis of a parameter are multiplied first, so that every entry is read and
    written once per axis, however many symmetries there are.

    >>> import math, numpy as np, torch
    >>> from undertow.torch import Axis, Symmetry
    >>> from undertow.torch.census.inplace import move_in_place
    >>> rows, columns = (Axis(name, axis, np.arange(2)[:, None], length=2) for name, axis in (("a", 0), ("b", 1)))
    >>> params = {"a": torch.ones(2, 1), "b": torch.ones(1, 2)}
    >>> symmetry, factors = Symmetry("rescaling", (columns,), (rows,), 1, True, 0.0), torch.tensor([2.0, 4.0])
    >>> move_in_place(params, [(symmetry, factors, 1 / factors)])
    >>> params["b"].tolist(), params["a"].flatten().tolist()
    ([[2.0, 4.0]], [0.5, 0.25])
    """
    steps: dict[str, list[_Step]] = {}
    for symmetry, transform, inverse in parts:
        on_plus = transform if transform.ndim == 1 else transform.mT
        for side, factor in ((symmetry.plus, on_plus), (symmetry.minus, inverse)):
            for axis in side:
                steps.setdefault(axis.parameter, []).append(_Step(axis, factor))
    with torch._C.DisableTorchFunction():  # no casts to replace here
        for name, own in steps.items():
            together: list[_Step] = []
            for step in own:
                if together and not _commute(together[0], step):
                    _scale(params[name], together)
                    together = []
                if step.factor.ndim == 1:
                    together.append(step)
                else:
                    _mix(params[name], step)
            _scale(params[name], together)


def _commute(one: _Step, two: _Step) -> bool:
    """Return whether two steps are scales around the same point."""
    return one.factor.ndim == two.factor.ndim == 1 and one.axis.shift == two.axis.shift


def _scale(tensor: Tensor, steps: Sequence[_Step]) -> None:
    """Multiply a parameter by the factors of all steps, along each axis once."""
    vectors: dict[tuple[int, bool], tuple[Axis, np.ndarray]] = {}
    for axis, factor in steps:
        _, held = vectors.setdefault((axis.axis, axis.by_matrix), (axis, np.ones(axis.length)))
        held[axis.index] *= factor.numpy(force=True)[:, None] ** axis.power
    for axis, vector in vectors.values():
        multiply_along(tensor, axis, vector)


def multiply_along(tensor: Tensor, axis: Axis, factors: np.ndarray) -> None:
    """Multiply every index along an axis of a parameter, plus its shift, by a factor in place."""
    view = tensor.reshape(1) if tensor.ndim == 0 else tensor
    shape = [1] * view.ndim
    shape[axis.axis] = -1
    if axis.by_matrix:
        view, shape = view.unflatten(0, (axis.matrices, -1)), [axis.matrices, *shape]
    if axis.shift:
        view.add_(axis.shift)
    view.mul_(torch.from_numpy(factors).to(view).reshape(shape))
    if axis.shift:
        view.sub_(axis.shift)


def _mix(tensor: Tensor, step: _Step) -> None:
    """Multiply blocks of indices by the matrices of a step."""
    axis, matrices = step.axis, step.factor.to(tensor)
    rows = unfold(tensor, axis)
    mixed = (matrices @ rows.reshape(*matrices.shape[:2], -1)).reshape(rows.shape)
    flat = all_rows(tensor, axis)
    if flat.data_ptr() != tensor.data_ptr():  # a copy
        tensor.copy_(fold(tensor, axis, mixed))
    elif rows.data_ptr() == flat[int(axis.index[0, 0])].data_ptr():  # indices in a row
        rows.copy_(mixed)
    else:
        flat[torch.as_tensor(axis.index, device=tensor.device).reshape(-1)] = mixed.reshape(-1, flat.shape[1])
