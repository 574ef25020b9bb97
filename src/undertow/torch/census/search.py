"""Search for symmetries in the null spaces of moments, and between whole parameters."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch._copies import Batch, Loss, forward, norm_epsilon, randomise, trainable
from undertow.torch.census.axes import Axis, Symmetry, move
from undertow.torch.census.candidates import Level, whole_parameters
from undertow.torch.census.moments import AxisMoments
from undertow.torch.census.nullspace import NONZERO_RTOL, NULL_RTOL, NullSpace, integer_null_space, sparse_basis

__all__ = ["LARGE_EPS", "NO_EPS", "search_levels", "search_whole_parameters"]

LARGE_EPS, NO_EPS = 0.1, 1e-30
"""With a large eps in every norm only exact symmetries hold; without eps the approximate ones are exact too."""
DIFFERENCE_STEP = 1e-7
"""Step of the differences of outputs in double precision. Their relative error is of this size, below `NULL_RTOL`."""
ZERO_MOMENT_RTOL = 1e-9
"""Moments below this, relative to their bound |G| |W|, count as zero."""


def search_levels(levels: list[Level], moments: AxisMoments, known: list[Symmetry]) -> list[Symmetry]:
    """Return the symmetries in the null spaces of all levels that are not implied by the known ones.

    Doubtful cases are added to `moments.unclear`.
    """
    symmetries: list[Symmetry] = []
    for level, matrix, no_gradient in zip(levels, moments.moments, moments.is_zero, strict=True):
        # a zero moment with a nonzero gradient is a symmetry by itself; without a gradient there is nothing to find
        bounds = np.array([moments.bounds[axis.parameter] for axis in level.axes])
        zero_moment = np.abs(matrix).max(axis=0) <= ZERO_MOMENT_RTOL * bounds
        axes = [axis for axis, q, s in zip(level.axes, no_gradient, zero_moment, strict=True) if not q and not s]
        columns = matrix[:, [not q and not s for q, s in zip(no_gradient, zero_moment, strict=True)]]
        for axis, q, s in zip(level.axes, no_gradient, zero_moment, strict=True):
            if s and not q and not axis.shift:
                _append_new(symmetries, known, _unnamed((axis,), ()))
        if len(axes) < 2:
            continue
        if columns.shape[0] < 2 * columns.shape[1]:
            moments.unclear.append(f"{level.name}: too many axes for so few indices, not searched")
            continue
        null = integer_null_space(columns)
        moments.unclear += _doubts(level.name, null)
        for vector in sparse_basis(null.basis, np.zeros((len(axes), 0))):
            plus = tuple(axis for axis, c in zip(axes, vector, strict=True) if c > 0)
            minus = tuple(axis for axis, c in zip(axes, vector, strict=True) if c < 0)
            _append_new(symmetries, known, _unnamed(plus, minus))
    return symmetries


def _unnamed(plus: tuple[Axis, ...], minus: tuple[Axis, ...]) -> Symmetry:
    """Return a symmetry of scales whose kind, exactness and change are not yet known."""
    return Symmetry("", plus or minus, minus if plus else (), 1, False, math.inf)


def _doubts(where: str, null: NullSpace) -> list[str]:
    """Return a sentence for each doubtful vector of a null space."""
    doubts = [f"{where}: a singular value of {value:.0e}, neither zero nor clearly nonzero" for value in null.ambiguous]
    return doubts + [f"{where}: a null vector with coefficients other than 0, 1, -1" for _ in null.non_integer]


def _append_new(symmetries: list[Symmetry], known: list[Symmetry], symmetry: Symmetry) -> None:
    if not _implied(symmetry, [*known, *symmetries]):
        symmetries.append(symmetry)


_Row = tuple[tuple[str, int, int], float]
"""A row of a parameter (name, axis, index), with the shift of its layer."""


def _signed(symmetry: Symmetry) -> list[tuple[Axis, int]]:
    return [(axis, 1) for axis in symmetry.plus] + [(axis, -1) for axis in symmetry.minus]


def _coefficients(symmetry: Symmetry, generator: int) -> dict[_Row, int]:
    """Return the rows that a generator scales, with their signs."""
    return {(key, axis.shift): sign for axis, sign in _signed(symmetry) for key in axis.keys(generator)}


def _overlapping(symmetry: Symmetry, row: int, other: Symmetry) -> list[dict[_Row, int]]:
    """Return the generators of `other` that share a row with generator `row` of `symmetry`."""
    rows = {
        int(k)
        for axis, _ in _signed(other)
        for mine, _ in _signed(symmetry)
        if (mine.parameter, mine.axis, mine.shift) == (axis.parameter, axis.axis, axis.shift)
        for k in np.flatnonzero(np.isin(axis.index, mine.index[row]).any(axis=1))
    }
    return [_coefficients(other, k) for k in rows]


def _implied(symmetry: Symmetry, known: list[Symmetry]) -> bool:
    """Return whether every generator is a sum of known generators, as in a coarser or shorter version of them.

    The first, the middle and the last generator stand for all.
    """
    if not known:
        return False
    for row in {0, symmetry.size // 2, symmetry.size - 1}:
        target = _coefficients(symmetry, row)
        columns = [column for other in known for column in _overlapping(symmetry, row, other)]
        if not columns:
            return False
        keys = {key: place for place, key in enumerate(dict.fromkeys([*target, *(k for c in columns for k in c)]))}
        matrix, vector = np.zeros((len(keys), len(columns))), np.zeros(len(keys))
        for place, column in enumerate(columns):
            for key, sign in column.items():
                matrix[keys[key], place] = sign
        for key, sign in target.items():
            vector[keys[key]] = sign
        best = np.linalg.lstsq(matrix, vector, rcond=None)[0]
        if np.abs(matrix @ best - vector).max() > 1e-6:
            return False
    return True


@torch.no_grad()
def search_whole_parameters(
    twin: nn.Module, batch: Batch, loss: Loss, known: list[Symmetry], moments: AxisMoments, seed: int
) -> tuple[list[Symmetry], list[str]]:
    """Return the symmetries with one scale per whole parameter that the known ones do not imply, and doubts in words.

    The scale of a residual stream is one of them. All outputs stay the same along them, so that differences of outputs
    give as many equations as needed. Parameters whose scales the known symmetries determine are left out. A draw of
    dropout in which a parameter has no effect gives no equation for it: enough draws are used to cover all parameters.
    """
    zero_rows = {(axis.parameter, axis.axis, k) for axis in moments.zero_axes for k in axis.index.reshape(-1).tolist()}
    has_gradient = lambda a: not all((a.parameter, a.axis, k) in zero_rows for k in a.index[0].tolist())
    scales = [axis for axis in whole_parameters(twin) if has_gradient(axis)]
    implied = _implied_scales(scales, known)
    determined = _pivots(implied)
    tried = [n for n in range(len(scales)) if n not in determined]
    if not tried:
        return [], []
    differences = _output_differences(twin, batch, loss, [scales[n] for n in tried], moments.covering_seeds(), seed)
    matrix, size = differences.matrix, differences.output_size
    largest = np.abs(matrix).max(axis=0)
    null = integer_null_space(np.where((largest <= NULL_RTOL * size)[None], 0.0, matrix))
    basis = np.zeros((len(scales), null.basis.shape[1]))
    basis[tried] = null.basis
    symmetries = []
    for vector in sparse_basis(basis, implied):
        plus, minus = (tuple(a for a, c in zip(scales, vector, strict=True) if c == sign) for sign in (1, -1))
        symmetries.append(_unnamed(plus, minus))
    faint = [
        f"whole parameters: a scale of {scales[n]} changes the outputs by {change:.0e}"
        for n, change in zip(tried, largest / size, strict=True)
        if NULL_RTOL < change < NONZERO_RTOL
    ]
    return symmetries, _doubts("whole parameters", null) + faint


def _implied_scales(scales: list[Axis], known: list[Symmetry]) -> np.ndarray:
    """Return the known symmetries as columns of coefficients of whole scales: (scales, symmetries that act on them)."""
    place = {(a.parameter, a.shift, k): n for n, a in enumerate(scales) for k in a.index[0].tolist()}
    implied = np.zeros((len(scales), len(known)))
    for column, symmetry in enumerate(known):
        for axis, sign in _signed(symmetry):
            mine = [n for n, a in enumerate(scales) if a.parameter == axis.parameter and a.shift == axis.shift]
            if any(scales[n].axis == axis.axis for n in mine):
                keys = ((axis.parameter, axis.shift, int(k)) for k in axis.index.reshape(-1))
                hit = {place[key] for key in keys if key in place}
            else:
                hit = set(mine)
            for n in hit:
                implied[n, column] += sign
    return implied[:, np.any(implied != 0, axis=0)]


class _Differences(NamedTuple):
    """Derivatives of outputs with respect to scales."""

    matrix: np.ndarray
    """(outputs of all draws, scales)."""
    output_size: float
    """Root mean square of the outputs, the largest over draws."""


def _output_differences(
    twin: nn.Module, batch: Batch, loss: Loss, scales: list[Axis], dropout_seeds: list[int], seed: int
) -> _Differences:
    """Return difference quotients of randomly chosen outputs with respect to the logarithm of each scale."""
    parts, sizes = [], []
    with norm_epsilon(twin, NO_EPS):
        randomise(twin, seed + 3000)
        for dropout_seed in dropout_seeds:
            outputs = forward(twin, batch, loss, dropout_seed)[1]
            count = min(outputs.numel(), 4 * len(scales) + 64)
            chosen = torch.randperm(outputs.numel(), generator=torch.Generator().manual_seed(dropout_seed))[:count]
            columns = []
            for axis in scales:
                moved = _outputs_after_scaling(twin, batch, loss, axis, dropout_seed)
                columns.append(((moved - outputs)[chosen] / DIFFERENCE_STEP).numpy(force=True))
            parts.append(np.stack(columns, axis=1))
            sizes.append(float(outputs.norm()) / outputs.numel() ** 0.5)
    return _Differences(np.concatenate(parts), max(sizes))


def _outputs_after_scaling(twin: nn.Module, batch: Batch, loss: Loss, axis: Axis, dropout_seed: int) -> Tensor:
    parameter = trainable(twin)[axis.parameter]
    original = parameter.detach().clone()
    factor = torch.tensor([math.exp(DIFFERENCE_STEP)], dtype=torch.float64)
    parameter.copy_(move({axis.parameter: original}, _unnamed((axis,), ()), factor)[axis.parameter])
    outputs = forward(twin, batch, loss, dropout_seed)[1]
    parameter.copy_(original)
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
