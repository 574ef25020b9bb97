"""Relations with coefficients 0, 1 and -1 in the null space of a matrix of moments.

A column belongs to an axis of a parameter, a row to an index and a draw of weights. Columns x with M x = 0 at every
draw are symmetries.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

__all__ = ["CLEAR", "NULL", "Found", "integer_null_space", "sparse_basis"]

NULL = 1e-6
"""A singular value below this, relative to the largest, is zero: in double precision symmetries lie at 1e-12."""
CLEAR = 1e-3
"""The next one should be above this; what lies between is reported."""


class Found(NamedTuple):
    """A null space with an integer basis."""

    basis: np.ndarray
    """(columns, dimension), entries 0, 1, -1 up to small integers; reduced to row echelon form."""
    unclear: tuple[float, ...]
    """Singular values between zero and clearly not zero."""
    odd: tuple[np.ndarray, ...]
    """Null vectors whose entries are not integers."""


def integer_null_space(moments: np.ndarray) -> Found:
    """The null space of a matrix, columns scaled to length one first."""
    scales = np.linalg.norm(moments, axis=0)
    columns = moments.shape[1]
    if columns == 0:
        return Found(np.zeros((0, 0)), (), ())
    scales = np.where(scales > 0, scales, 1.0)
    missing = max(columns - moments.shape[0], 0)
    _, values, vectors = np.linalg.svd(np.pad(moments / scales, ((0, missing), (0, 0))), full_matrices=False)
    top = values[0] if values[0] > 0 else 1.0
    null = values <= NULL * top
    unclear = tuple(float(v / top) for v in values[~null] if v < CLEAR * top)
    reduced = _echelon(vectors[null].T, scales)
    rounded = np.round(reduced)
    good = np.abs(reduced - rounded).max(axis=0, initial=0.0) < 1e-4 if reduced.size else np.zeros(0, bool)
    return Found(rounded[:, good], unclear, tuple(reduced[:, ~good].T))


def _echelon(basis: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """diag(1/scales) times the orthonormal basis (columns), with an identity in rows chosen by complete pivoting."""
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


def sparse_basis(basis: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
    """The sparsest vectors with entries 0, 1, -1 that span what `basis` has beyond the span of `known`.

    For every column the vector of least sum of absolute values with a 1 there, by linear programming; then those of
    the smallest support that are independent of `known` and of one another.
    """
    total = np.concatenate([known, basis], axis=1)
    wanted = np.linalg.matrix_rank(total) - (np.linalg.matrix_rank(known) if known.size else 0)
    if wanted == 0:
        return []
    candidates = [v for v in basis.T if _plain(v)]
    new = np.any(basis != 0, axis=1)
    for part in _components(total):
        inside = total[:, np.any(total[part] != 0, axis=0)]
        if inside.shape[1] > 1:
            candidates += [v for row in part if new[row] and (v := _least(inside, row)) is not None]
    candidates.sort(key=lambda v: (np.count_nonzero(v), np.sum(v < 0)))
    chosen, span = [], known
    for vector in candidates:
        grown = np.concatenate([span, vector[:, None]], axis=1)
        if np.linalg.matrix_rank(grown) > (np.linalg.matrix_rank(span) if span.size else 0):
            chosen.append(vector)
            span = grown
        if len(chosen) == wanted:
            break
    return chosen


def _plain(vector: np.ndarray) -> bool:
    return bool(np.all(np.isin(vector, (-1, 0, 1))) and np.any(vector))


def _components(basis: np.ndarray) -> list[list[int]]:
    """Rows linked by a basis vector."""
    label = np.arange(basis.shape[0])
    for vector in basis.T:
        rows = np.flatnonzero(vector)
        merged = np.isin(label, label[rows])
        label[merged] = label[rows[0]]
    used = np.any(basis != 0, axis=1)
    return [np.flatnonzero((label == k) & used).tolist() for k in np.unique(label[used])]


def _least(basis: np.ndarray, row: int) -> np.ndarray | None:
    """The vector of the span with entry 1 at `row` and the least sum of absolute values, if its entries are 0, +-1."""
    rows, count = basis.shape
    cost = np.concatenate([np.zeros(count), np.ones(rows)])
    above = np.block([[basis, -np.eye(rows)], [-basis, -np.eye(rows)]])
    pin = np.concatenate([basis[row], np.zeros(rows)])[None]
    if not np.any(basis[row]):
        return None
    found = linprog(
        cost,
        A_ub=above,
        b_ub=np.zeros(2 * rows),
        A_eq=pin,
        b_eq=[1.0],
        bounds=[(None, None)] * count + [(0, None)] * rows,
    )
    if found.status != 0:
        return None
    vector = basis @ found.x[:count]
    rounded = np.round(vector)
    return rounded if np.abs(vector - rounded).max() < 1e-6 and _plain(rounded) else None
