"""Symmetries between indices that no level puts side by side, from the null space over all indices.

Where the levels leave a part of the null space unexplained, its sparsest vectors of small integers are symmetries too:
of a stream that is written by several layers in different parts, for instance. Each is a candidate for a proof.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.optimize
import scipy.sparse

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.nullspace import LARGEST
from undertow.torch.census.unexplained import IndexNullSpace, IndexTable

__all__ = ["remaining_symmetries", "without_sums"]

MOST_REMAINING = 100
"""Largest number of vectors that are searched, each by a linear program."""
MOST_DIRECTIONS = 12
"""Largest number of directions in which a vector of integers is searched before the search ends."""

_Part = tuple[Axis, int, tuple[int, ...]]
"""An axis, an exponent and the indices that have it."""


def remaining_symmetries(space: IndexNullSpace, symmetries: Sequence[Symmetry]) -> list[Symmetry]:
    """Return symmetries that extend the known ones to the null space over all indices, as far as they are integer.

    Scales of whole parameters do not count as known: they may be sums of what is found (see `without_sums`).
    """
    found: list[np.ndarray] = []
    if space.outside(symmetries).shape[1] == 0:
        return []
    symmetries = [symmetry for symmetry in symmetries if not _is_whole(symmetry)]
    inverse = np.divide(1.0, space.scales, out=np.zeros_like(space.scales), where=space.moving)
    basis = space.null * inverse[:, None]
    rest = space.outside(symmetries)
    for _ in range(min(rest.shape[1], MOST_REMAINING)):
        tried = (_integer(basis, _sparsest(basis, direction @ space.null)) for direction in rest.T[:MOST_DIRECTIONS])
        vector = next((vector for vector in tried if vector is not None), None)
        if vector is None:
            break
        found.append(_simplest(space, symmetries, found, basis, vector))
        rest = space.outside(symmetries, found)
        if rest.shape[1] == 0:
            break
    return _grouped([_parts(space.indices, vector) for vector in found])


def _simplest(
    space: IndexNullSpace,
    symmetries: Sequence[Symmetry],
    found: list[np.ndarray],
    basis: np.ndarray,
    vector: np.ndarray,
) -> np.ndarray:
    """Return the vector with the fewest entries among those that have an entry of this vector and are new as well.

    The sparsest vector along a direction may be a sum of sparser ones, depending on the direction.
    """
    support = np.flatnonzero(vector)
    left = space.outside(symmetries, [*found, vector]).shape[1]
    others = [_integer(basis, _sparsest(basis, basis[k])) for k in dict.fromkeys(support[[0, len(support) // 2, -1]])]
    new = lambda other: space.outside(symmetries, [*found, other]).shape[1] == left
    candidates = [vector, *(other for other in others if other is not None and new(other))]
    return min(candidates, key=np.count_nonzero)


def without_sums(space: IndexNullSpace, symmetries: Sequence[Symmetry]) -> list[Symmetry]:
    """Return the symmetries without scales of whole parameters that are sums of others."""
    kept = [symmetry for symmetry in symmetries if not _is_whole(symmetry)]
    for symmetry in filter(_is_whole, symmetries):
        if space.outside([*kept, symmetry]).shape[1] < space.outside(kept).shape[1]:
            kept.append(symmetry)
    return kept


def _is_whole(symmetry: Symmetry) -> bool:
    return all(axis.role == "whole" for axis in symmetry.axes)


def _sparsest(basis: np.ndarray, functional: np.ndarray) -> np.ndarray | None:
    """Return coefficients with functional . coefficients = 1 and the least sum of absolute values of the vector.

    The functional vanishes on what is known, so that the vector is independent of it.
    """
    used = np.flatnonzero(np.abs(basis).max(1) > 1e-9 * np.abs(basis).max())
    matrix, eye = basis[used], scipy.sparse.eye_array(len(used))
    program = scipy.optimize.linprog(
        np.concatenate([np.zeros(basis.shape[1]), np.ones(len(used))]),
        A_ub=scipy.sparse.block_array([[matrix, -eye], [-matrix, -eye]]),
        b_ub=np.zeros(2 * len(used)),
        A_eq=np.concatenate([functional, np.zeros(len(used))])[None] / np.abs(functional).max(),
        b_eq=[1.0],
        bounds=[(None, None)] * basis.shape[1] + [(0, None)] * len(used),
    )
    return program.x[: basis.shape[1]] if program.status == 0 else None


def _integer(basis: np.ndarray, coefficients: np.ndarray | None) -> np.ndarray | None:
    """Return a combination times the factor that makes its entries small integers, None if there is none."""
    if coefficients is None:
        return None
    vector = basis @ coefficients
    sizes = np.abs(vector)
    least = sizes[sizes > 1e-4 * sizes.max()].min()
    for factor in range(1, LARGEST + 1):
        scaled = factor * vector / least
        rounded = np.round(scaled)
        if np.abs(scaled - rounded).max() < 1e-3 and np.abs(rounded).max() <= LARGEST:
            return rounded
    return None


def _parts(indices: IndexTable, vector: np.ndarray) -> list[_Part]:
    """Return the axes of a vector with the indices of each exponent."""
    parts = []
    for axis in indices.axes:
        entries = vector[indices.rows(axis)]
        parts += [(axis, int(c), tuple(np.flatnonzero(entries == c).tolist())) for c in np.unique(entries) if c]
    return parts


def _grouped(vectors: list[list[_Part]]) -> list[Symmetry]:
    """Return symmetries, with one generator for each of the vectors that move the same axes in the same way."""
    groups: dict[tuple, list[list[_Part]]] = defaultdict(list)
    for parts in vectors:
        sign = 1 if parts[0][1] > 0 else -1
        parts = [(axis, sign * power, index) for axis, power, index in parts]
        key = tuple(sorted((a.parameter, a.axis, a.shift, power, len(index)) for a, power, index in parts))
        groups[key].append(parts)
    return [_symmetry(sorted(group, key=lambda parts: parts[0][2])) for group in groups.values()]


def _symmetry(generators: list[list[_Part]]) -> Symmetry:
    """Return the symmetry with these generators; they have the same axes and exponents."""
    sides: tuple[list[Axis], list[Axis]] = ([], [])
    place = lambda part: (part[0].parameter, part[0].axis, part[0].shift, part[1])
    ordered = [sorted(parts, key=place) for parts in generators]
    whole = len(generators) == 1 and all(len(index) == axis.length for axis, _, index in generators[0])
    for same in zip(*ordered, strict=True):
        axis, power, _ = same[0]
        moved = replace(axis, index=np.array([index for _, _, index in same]), power=abs(power))
        sides[int(power < 0)].append(replace(moved, role="whole", fold="whole") if whole else moved)
    plus, minus = map(tuple, sides)
    return Symmetry("", plus or minus, minus if plus else (), 1, False, np.inf)
