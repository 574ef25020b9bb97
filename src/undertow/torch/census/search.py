"""Search for symmetries in the null spaces of moments, and between whole parameters."""

import math
import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, norm_epsilon, randomise, trainable, visit_gradients
from undertow.torch.census.axes import Axis, Symmetry, unfold
from undertow.torch.census.candidates import Level, whole_parameters
from undertow.torch.census.generators import Generators, signed, sums_imply
from undertow.torch.census.inplace import move_in_place
from undertow.torch.census.moments import AxisMoments
from undertow.torch.census.nullspace import NONZERO_RTOL, NULL_RTOL, NullSpace, integer_null_space, sparse_basis

__all__ = ["LARGE_EPS", "NO_EPS", "search_levels", "search_whole_parameters"]

LARGE_EPS, NO_EPS = 0.1, 1e-30
"""With a large eps in every norm only exact symmetries hold; without eps the approximate ones are exact too."""
DIFFERENCE_STEP = 1e-7
"""Step of the differences of outputs in double precision. Their relative error is of this size, below `NULL_RTOL`."""
MAX_SCALES = 40
"""Number of whole parameters up to which each is scaled by itself."""
ROWS_PER_SCALE = 1.5
"""Least number of outputs per scale of a whole parameter; with fewer, a null vector may be one of the batch only."""
ZERO_MOMENT_RTOL = 1e-9
"""Moments below this, relative to their bound |G| |W|, count as zero."""


def search_levels(levels: list[Level], moments: AxisMoments, known: list[Symmetry]) -> list[Symmetry]:
    """Return the symmetries in the null spaces of all levels that are not implied by the known ones.

    Doubtful cases are added to `moments.unclear`.
    """
    found = Generators(known)
    for level, matrix, no_gradient in zip(levels, moments.moments, moments.is_zero, strict=True):
        # a zero moment with a nonzero gradient is a symmetry by itself; without a gradient there is nothing to find
        bounds = np.array([moments.bounds[axis.parameter] for axis in level.axes])
        zero_moment = np.abs(matrix).max(axis=0) <= ZERO_MOMENT_RTOL * bounds
        axes = [axis for axis, q, s in zip(level.axes, no_gradient, zero_moment, strict=True) if not q and not s]
        columns = matrix[:, [not q and not s for q, s in zip(no_gradient, zero_moment, strict=True)]]
        for axis, q, s in zip(level.axes, no_gradient, zero_moment, strict=True):
            if s and not q and not axis.shift:
                found.add(_unnamed((axis,), ()))
        if len(axes) < 2:
            continue
        if columns.shape[0] < 2 * columns.shape[1]:
            moments.unclear.append(f"{level.name}: too many axes for so few indices, not searched")
            continue
        null = integer_null_space(columns)
        moments.unclear += _doubts(level.name, null)
        for vector in sparse_basis(null.basis, np.zeros((len(axes), 0))):
            found.add(_unnamed(*_sides(axes, vector)))
    return found.without_implied()


def _sides(axes: list[Axis], vector: np.ndarray) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Return the axes with positive and with negative coefficients, with their powers; equal parts become one axis."""
    sides: tuple[dict[tuple, Axis], dict[tuple, Axis]] = ({}, {})
    for axis, c in zip(axes, vector, strict=True):
        if c:
            side, key = sides[int(c < 0)], (axis.parameter, axis.axis, axis.by_matrix, axis.shift, abs(c))
            index = np.concatenate([side[key].index, axis.index], axis=1) if key in side else axis.index
            side[key] = replace(axis, index=np.sort(index, axis=1), power=abs(int(c)))
    return tuple(sides[0].values()), tuple(sides[1].values())


def _unnamed(plus: tuple[Axis, ...], minus: tuple[Axis, ...]) -> Symmetry:
    """Return a symmetry of scales whose kind, exactness and change are not yet known."""
    return Symmetry("", plus or minus, minus if plus else (), 1, False, math.inf)


def _doubts(where: str, null: NullSpace) -> list[str]:
    """Return a sentence for each doubtful vector of a null space."""
    doubts = [f"{where}: a singular value of {value:.0e}, neither zero nor clearly nonzero" for value in null.ambiguous]
    return doubts + [f"{where}: a null vector with coefficients that are not small integers" for _ in null.non_integer]


@torch.no_grad()
def search_whole_parameters(
    twin: nn.Module, batch: Batch, loss: Loss, known: list[Symmetry], moments: AxisMoments, seed: int
) -> tuple[list[Symmetry], list[str]]:
    """Return the symmetries with one scale per whole parameter that the known ones do not imply, and doubts in words.

    The scale of a residual stream is one of them. All outputs stay the same along them, so that differences of outputs
    give as many equations as needed. Parameters whose scales the known symmetries determine are left out. A draw of
    dropout in which a parameter has no effect gives no equation for it: enough draws are used to cover all parameters.
    Each scale takes a forward pass; with more than `MAX_SCALES` of them those of repeated layers move together.
    """
    zero_rows = {(axis.parameter, axis.axis, k) for axis in moments.zero_axes for k in axis.index.reshape(-1).tolist()}
    has_gradient = lambda a: not all((a.parameter, a.axis, k) in zero_rows for k in a.index[0].tolist())
    scales = [axis for axis in whole_parameters(twin) if has_gradient(axis)]
    implied = _implied_scales(scales, known)
    determined = _pivots(implied)
    tried = _tied([n for n in range(len(scales)) if n not in determined], scales)
    if not tried:
        return [], []
    moved = [[scales[n] for n in group] for group in tried]
    differences = _output_differences(twin, batch, loss, moved, moments.covering_seeds(), seed)
    matrix, size = differences.matrix, differences.output_size
    largest = np.abs(matrix).max(axis=0)
    null = integer_null_space(np.where((largest <= NULL_RTOL * size)[None], 0.0, matrix))
    basis = np.zeros((len(scales), null.basis.shape[1]))
    for group, coefficients in zip(tried, null.basis, strict=True):
        basis[group] = coefficients
    symmetries = [_unnamed(*_sides(scales, vector)) for vector in sparse_basis(basis, implied)]
    symmetries = [symmetry for symmetry in symmetries if not sums_imply(known, symmetry, moments.zero_axes)]
    faint = [
        f"whole parameters: a scale of {scales[group[0]]} changes the outputs by {change:.0e}"
        for group, change in zip(tried, largest / size, strict=True)
        if NULL_RTOL < change < NONZERO_RTOL
    ]
    return symmetries, _doubts("whole parameters", null) + faint


def _tied(tried: list[int], scales: list[Axis]) -> list[list[int]]:
    """Return the scales in groups that move together: one each, or those of repeated layers if there are many."""
    if len(tried) <= MAX_SCALES:
        return [[n] for n in tried]
    groups: dict[tuple, list[int]] = {}
    for n in tried:
        axis = scales[n]
        key = (re.sub(r"\d+", "*", axis.parameter), axis.shift, axis.index.tobytes())
        groups.setdefault(key, []).append(n)
    return list(groups.values())


def _implied_scales(scales: list[Axis], known: list[Symmetry]) -> np.ndarray:
    """Return the known symmetries as columns of coefficients of whole scales: (scales, symmetries that act on them).

    A symmetry that moves only a part of a scale is left out.
    """
    of_parameter: dict[tuple[str, float], list[int]] = {}
    for n, scale in enumerate(scales):
        of_parameter.setdefault((scale.parameter, scale.shift), []).append(n)
    columns = []
    for symmetry in known:
        column = np.zeros(len(scales))
        for axis, power in signed(symmetry):
            for n in of_parameter.get((axis.parameter, axis.shift), ()):
                share = _share(axis, scales[n])
                column[n] += power * share if share in (0, 1) else math.nan
        if np.isfinite(column).all() and column.any():
            columns.append(column)
    return np.stack(columns, axis=1) if columns else np.zeros((len(scales), 0))


def _share(axis: Axis, scale: Axis) -> float:
    """Return the share of a whole scale that an axis moves."""
    if axis.axis == scale.axis and not axis.by_matrix:
        return float(np.isin(scale.index, axis.index).mean())
    return len(np.unique(axis.index)) / axis.length


class _Differences(NamedTuple):
    """Derivatives of outputs with respect to scales."""

    matrix: np.ndarray
    """(outputs of all draws, scales)."""
    output_size: float
    """Root mean square of the outputs, the largest over draws."""


def _output_differences(
    twin: nn.Module, batch: Batch, loss: Loss, scales: list[list[Axis]], dropout_seeds: list[int], seed: int
) -> _Differences:
    """Return derivatives of outputs with respect to the logarithm of each group of scales.

    They are difference quotients of randomly chosen outputs. Where there are fewer outputs than equations are needed
    they are gradients of random combinations of outputs, at as many draws of weights as needed.
    """
    parts, sizes = [], []
    needed = math.ceil(ROWS_PER_SCALE * len(scales)) + 8
    with norm_epsilon(twin, NO_EPS):
        randomise(twin, seed + 3000)
        for dropout_seed in dropout_seeds:
            outputs = forward(twin, batch, loss, dropout_seed)[1]
            sizes.append(float(outputs.norm()) / outputs.numel() ** 0.5)
            if outputs.numel() * len(dropout_seeds) < needed:
                continue
            count = min(outputs.numel(), 4 * len(scales) + 64)
            chosen = torch.randperm(outputs.numel(), generator=torch.Generator().manual_seed(dropout_seed))[:count]
            columns = []
            for axes in scales:
                moved = _outputs_after_scaling(twin, batch, loss, axes, dropout_seed)
                columns.append(((moved - outputs)[chosen] / DIFFERENCE_STEP).numpy(force=True))
            parts.append(np.stack(columns, axis=1))
        if not parts:
            for row in range(needed):
                dropout_seed = dropout_seeds[row % len(dropout_seeds)]
                randomise(twin, seed + 3000 + row)
                parts.append(_output_gradient(twin, batch, loss, scales, dropout_seed, seed + row))
    return _Differences(np.concatenate(parts), max(sizes))


@torch.enable_grad()
def _output_gradient(
    twin: nn.Module, batch: Batch, loss: Loss, scales: list[list[Axis]], dropout_seed: int, seed: int
) -> np.ndarray:
    """Return the derivative of a random combination of the outputs with respect to each group of scales, as a row."""
    outputs = forward(twin, batch, loss, dropout_seed)[1]
    signal = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    column = {id(axis): number for number, axes in enumerate(scales) for axis in axes}
    row = np.zeros((1, len(scales)))

    def visit(name: str, weight: Tensor, gradient: Tensor) -> None:
        for axis in (axis for axes in scales for axis in axes if axis.parameter == name):
            moment = (unfold(gradient, axis) * (unfold(weight, axis) + axis.shift)).sum()
            row[0, column[id(axis)]] += float(moment)

    visit_gradients(twin, (outputs * signal.to(outputs)).sum() / outputs.numel() ** 0.5, visit)
    return row


def _outputs_after_scaling(twin: nn.Module, batch: Batch, loss: Loss, axes: list[Axis], dropout_seed: int) -> Tensor:
    params = trainable(twin)
    by = lambda amount: torch.tensor([math.exp(amount)], dtype=torch.float64)
    scale = lambda axis, amount: move_in_place(params, [(_unnamed((axis,), ()), by(amount), by(-amount))])
    for axis in axes:
        scale(axis, DIFFERENCE_STEP)
    outputs = forward(twin, batch, loss, dropout_seed)[1]
    for axis in axes:
        scale(axis, -DIFFERENCE_STEP)
    return outputs


def _pivots(matrix: np.ndarray) -> set[int]:
    """Return rows that the columns of a matrix determine, as many as its rank."""
    work, chosen = matrix.copy(), set()
    for column in range(work.shape[1]):
        row = int(np.argmax(np.abs(work[:, column])))
        if abs(work[row, column]) < 1e-9:
            continue
        chosen.add(row)
        pivot = work[:, column] / work[row, column]
        for other in range(column + 1, work.shape[1]):
            work[:, other] -= work[row, other] * pivot
    return chosen
