"""Vectors with small integer entries in the null space of a matrix of moments.

A column of the matrix M belongs to an axis of a parameter, a row to an index and a draw of weights. A vector x with
M x = 0 is a symmetry: the axes with entry 1 scale against those with entry -1 (an entry 2 scales twice as fast).
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

__all__ = ["NONZERO_RTOL", "NULL_RTOL", "NullSpace", "integer_null_space", "sparse_basis"]

NULL_RTOL = 1e-6
"""Singular values below this, relative to the largest, count as zero; those of symmetries are near 1e-12 in float64."""
LARGEST = 3
"""Largest coefficient: with a squared ReLU one layer scales twice as fast as the other."""
NONZERO_RTOL = 1e-3
"""Singular values above this, relative to the largest, count as nonzero; those in between are reported."""


class NullSpace(NamedTuple):
    """A null space with an integer basis."""

    basis: np.ndarray
    """(columns, dimension), small integers, mostly 0, 1 and -1; in reduced echelon form."""
    ambiguous: tuple[float, ...]
    """Singular values between `NULL_RTOL` and `NONZERO_RTOL`, relative to the largest."""
    non_integer: tuple[np.ndarray, ...]
    """Null vectors whose entries are not integers."""


def integer_null_space(moments: np.ndarray) -> NullSpace:
    """Return the null space of a matrix, with its columns scaled to length one first."""
    scales = np.linalg.norm(moments, axis=0)
    columns = moments.shape[1]
    if columns == 0:
        return NullSpace(np.zeros((0, 0)), (), ())
    scales = np.where(scales > 0, scales, 1.0)
    missing = max(columns - moments.shape[0], 0)
    _, values, vectors = np.linalg.svd(np.pad(moments / scales, ((0, missing), (0, 0))), full_matrices=False)
    top = values[0] if values[0] > 0 else 1.0
    null = values <= NULL_RTOL * top
    ambiguous = tuple(float(v / top) for v in values[~null] if v < NONZERO_RTOL * top)
    reduced = _without_fractions(_echelon(vectors[null].T, scales))
    rounded = np.round(reduced)
    good = np.abs(reduced - rounded).max(axis=0, initial=0.0) < 1e-4 if reduced.size else np.zeros(0, bool)
    return NullSpace(rounded[:, good], ambiguous, tuple(reduced[:, ~good].T))


def _echelon(basis: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return diag(1/scales) times an orthonormal basis (columns), reduced to an identity in rows of large entries."""
    work, pivots = basis.copy(), []
    for k in range(work.shape[1]):
        block = np.abs(work[:, k:])
        block[pivots] = 0
        pivot, column = divmod(int(np.argmax(block)), block.shape[1])
        work[:, [k, k + column]] = work[:, [k + column, k]]
        work[:, k] /= work[pivot, k]
        others = [other for other in range(work.shape[1]) if other != k]
        work[:, others] -= work[:, k][:, None] * work[pivot, others][None]
        pivots.append(pivot)
    return work * scales[pivots][None] / scales[:, None]


def _without_fractions(basis: np.ndarray) -> np.ndarray:
    """Return the columns, each times the smallest integer up to `LARGEST` that makes its entries integers."""
    result = basis.copy()
    for column in result.T:
        for factor in range(2, LARGEST + 1):
            if np.abs(column - np.round(column)).max(initial=0.0) < 1e-4:
                break
            if np.abs(factor * column - np.round(factor * column)).max(initial=0.0) < 1e-4:
                column *= factor
    return result


def sparse_basis(basis: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
    """Return the sparsest vectors of small integers that extend the span of `known` to that of `known` and `basis`.

    Candidates are, for every row, the vectors of least l1 norm with a 1 in that row, by linear programming. Of these,
    those of the smallest support that are independent of `known` and of one another are returned.
    """
    total = np.concatenate([known, basis], axis=1)
    missing = np.linalg.matrix_rank(total) - (np.linalg.matrix_rank(known) if known.size else 0)
    if missing == 0:
        return []
    candidates = [v for v in basis.T if _is_small(v)]
    new = np.any(basis != 0, axis=1)
    for part in _components(total):
        inside = total[:, np.any(total[part] != 0, axis=0)]
        if inside.shape[1] > 1:
            candidates += [v for row in part if new[row] and (v := _sparsest_through(inside, row)) is not None]
    candidates.sort(key=lambda v: (np.count_nonzero(v), np.sum(v < 0)))
    chosen, span = [], known
    for vector in candidates:
        extended = np.concatenate([span, vector[:, None]], axis=1)
        if np.linalg.matrix_rank(extended) > (np.linalg.matrix_rank(span) if span.size else 0):
            chosen.append(vector)
            span = extended
        if len(chosen) == missing:
            break
    return chosen


def _is_small(vector: np.ndarray) -> bool:
    """Return whether the entries are integers up to `LARGEST`, not all zero."""
    return bool(np.all(vector == np.round(vector)) and 0 < np.abs(vector).max(initial=0) <= LARGEST)


def _components(basis: np.ndarray) -> list[list[int]]:
    """Return the sets of rows that are linked by basis vectors."""
    members = csr_array(basis != 0, dtype=int)
    _, label = connected_components(members @ members.T, directed=False)
    used = np.any(basis != 0, axis=1)
    return [np.flatnonzero((label == k) & used).tolist() for k in np.unique(label[used])]


def _sparsest_through(basis: np.ndarray, row: int) -> np.ndarray | None:
    """Return the vector of the span with entry 1 at `row` and least l1 norm, None if it is not of small integers."""
    rows, count = basis.shape
    cost = np.concatenate([np.zeros(count), np.ones(rows)])
    above = np.block([[basis, -np.eye(rows)], [-basis, -np.eye(rows)]])
    pin = np.concatenate([basis[row], np.zeros(rows)])[None]
    if not np.any(basis[row]):
        return None
    program = linprog(
        cost,
        A_ub=above,
        b_ub=np.zeros(2 * rows),
        A_eq=pin,
        b_eq=[1.0],
        bounds=[(None, None)] * count + [(0, None)] * rows,
    )
    if program.status != 0:
        return None
    vector = basis @ program.x[:count]
    rounded = np.round(vector)
    return rounded if np.abs(vector - rounded).max() < 1e-6 and _is_small(rounded) else None
