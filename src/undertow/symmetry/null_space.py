"""Numerical null spaces, reduced so that combinations with few members are separated."""

import numpy as np

__all__ = ["echelon", "null_space", "signs"]


def null_space(rows: np.ndarray, scale: np.ndarray, tolerance: float) -> np.ndarray:
    """Return vectors v (as rows, reduced to echelon form) with rows @ v = 0.

    Columns are divided by `scale` first. Columns of scale zero are left out.
    """
    used = scale > 0
    if not used.any():
        return np.zeros((0, rows.shape[1]))
    scaled = rows[:, used] / scale[used]
    _, values, right = np.linalg.svd(scaled, full_matrices=True)
    values = np.concatenate([values, np.zeros(right.shape[0] - values.size)])
    reduced = echelon(right[values <= tolerance * 10 * np.sqrt(len(rows))])
    pivots = (reduced != 0).argmax(axis=1)
    full = np.zeros((len(reduced), rows.shape[1]))
    full[:, used] = reduced * scale[used][pivots][:, None] / scale[used]
    return full


def echelon(vectors: np.ndarray) -> np.ndarray:
    """Return the reduced row echelon form, with pivoting, without the rows that vanish.

    >>> import numpy as np
    >>> from undertow.symmetry.null_space import echelon
    >>> print(echelon(np.array([[1.0, 1.0, 2.0], [1.0, -1.0, 0.0]])) + 0.0)
    [[1. 0. 1.]
     [0. 1. 1.]]
    """
    rows = vectors.copy()
    size = np.abs(rows).max(initial=1e-300)  # of the given rows: a row that is divided by its pivot may become large
    pivot = 0
    for column in range(rows.shape[1]):
        if pivot == len(rows):
            break
        best = pivot + int(np.abs(rows[pivot:, column]).argmax())
        if abs(rows[best, column]) < 1e-6 * size:
            rows[pivot:, column] = 0
            continue
        rows[[pivot, best]] = rows[[best, pivot]]
        rows[pivot] /= rows[pivot, column]
        for other in range(len(rows)):
            if other != pivot:
                rows[other] -= rows[other, column] * rows[pivot]
                rows[other, column] = 0
        pivot += 1
    return rows[:pivot]


def signs(vector: np.ndarray) -> tuple[int, ...] | None:
    """Return the vector as numbers -1, 0 and 1 after scaling, or None where it is not of this form."""
    scaled = vector / np.abs(vector).max()
    rounded = np.round(scaled)
    return tuple(int(x) for x in rounded) if np.abs(scaled - rounded).max() < 1e-3 else None
