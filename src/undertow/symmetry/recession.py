"""Directions along which commuting symmetries have no finite equilibrium.

Along commuting diagonal generators with amounts d the noise of an entry e scales like exp(-2 (A d)_e) and its weight
penalty like exp(2 (A d)_e). Their sum is convex in d. It has no minimum exactly if there is a d along which no term
grows and one of them falls: (A d)_e >= 0 where entry e has noise, (A d)_e <= 0 where it has weight decay, not all of
them zero. A linear programme finds such a direction or proves that there is none.
"""

import itertools
from functools import singledispatch
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.symmetry.generators import AbstractDiagonal, AbstractSymmetry, Exponential

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Sparse = csr_array
else:
    Sparse = object  # scipy.sparse is imported where it is used, for the start-up time

__all__ = ["directions_at_infinity", "generator_matrix", "is_diagonal"]

ROUNDING = 1e-7
"""Coefficients of a direction below this, relative to the largest, are zeros of the linear programme."""


@singledispatch
def is_diagonal(symmetry: AbstractSymmetry) -> bool:
    """Return whether the generators are diagonal in the entries of params, so that all such generators commute."""
    return False


@is_diagonal.register(AbstractDiagonal)
def _family_is_diagonal(symmetry: AbstractDiagonal) -> bool:
    return True


@is_diagonal.register(Exponential)
def _exponential_is_diagonal(symmetry: Exponential) -> bool:
    return not callable(symmetry.generator)


def directions_at_infinity(
    symmetries: tuple[AbstractSymmetry, ...], params: PyTree, noise: PyTree, weight_decay: float
) -> list[list[np.ndarray]]:
    """Return combinations of diagonal generators whose equilibrium is at infinity, with disjoint members.

    `noise` is the noise power of every entry, like params. Each direction has one array of coefficients per symmetry,
    in the shape of its charge. Generators that have no equilibrium by themselves are listed first, then combinations
    of the rest with few members. With the members of all directions held fixed, all other generators have a finite
    equilibrium.
    """
    from scipy.sparse import vstack

    matrix, shapes = generator_matrix(symmetries, params)
    noisy = np.asarray(trees.ravel(noise)) > 0
    heavy = (np.asarray(trees.ravel(params)) != 0) & (weight_decay > 0)
    rows = vstack([matrix[noisy], -matrix[heavy]]).tocsr()
    rows = _distinct(rows[np.diff(rows.indptr) > 0])
    if not rows.shape[0]:
        return []
    directions: list[np.ndarray] = []
    free = np.ones(matrix.shape[1], bool)
    least, most = (np.asarray(extreme.todense()).ravel() for extreme in (rows.min(axis=0), rows.max(axis=0)))
    for column in np.flatnonzero((least < 0) != (most > 0)):
        directions.append(np.where(np.arange(free.size) == column, 1.0 if most[column] > 0 else -1.0, 0.0))
        free[column] = False
    while free.any():
        direction = _direction(rows[:, np.flatnonzero(free)])
        if direction is None:
            break
        whole = np.zeros(free.size)
        whole[free] = direction
        directions.append(whole)
        free &= whole == 0
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [[part.reshape(s) for part, s in zip(np.split(whole, ends), shapes, strict=True)] for whole in directions]


def generator_matrix(symmetries: tuple[AbstractSymmetry, ...], params: PyTree) -> tuple[Sparse, list[tuple[int, ...]]]:
    """Return the diagonals of all generators, (entries, generators), and the shapes of the charges."""
    from scipy.sparse import hstack

    shapes = [jax.eval_shape(symmetry.charge, params).shape for symmetry in symmetries]
    return hstack([_diagonals(symmetry, params) for symmetry in symmetries]).tocsr(), shapes


@singledispatch
def _diagonals(symmetry: AbstractSymmetry, params: PyTree) -> Sparse:
    """Return the diagonals of the generators of a symmetry as a sparse matrix (entries, generators)."""
    raise TypeError(f"`{type(symmetry).__name__}`: the generators are not diagonal in the entries of params.")


@_diagonals.register(AbstractDiagonal)
def _family_diagonals(symmetry: AbstractDiagonal, params: PyTree) -> Sparse:
    from scipy.sparse import csr_array

    shape = jax.eval_shape(symmetry.charge, params).shape
    count = int(np.prod(shape))
    # every entry has at most one generator of a family: its number, with the sign of the eigenvalue
    codes = np.rint(np.asarray(_numbered(symmetry, params, shape), np.float64)).astype(int)
    rows = np.flatnonzero(codes)
    entries = (np.sign(codes[rows]).astype(float), (rows, np.abs(codes[rows]) - 1))
    return csr_array(entries, shape=(codes.size, count))


@eqx.filter_jit
def _numbered(symmetry: AbstractDiagonal, params: PyTree, shape: tuple[int, ...]) -> Array:
    """Return the number of the generator of every entry, from 1, with the sign of its eigenvalue; 0 without one."""
    return trees.ravel(symmetry.logs(params, jnp.arange(1.0, np.prod(shape) + 1).reshape(shape)))


@_diagonals.register(Exponential)
def _exponential_diagonal(symmetry: Exponential, params: PyTree) -> Sparse:
    from scipy.sparse import csr_array

    spread = jax.tree.map(lambda a, p: jnp.broadcast_to(jnp.asarray(a), p.shape), symmetry.generator, params)
    return csr_array(np.asarray(trees.ravel(spread), np.float64)[:, None])


def _distinct(rows: Sparse) -> Sparse:
    """Return the distinct rows. Entries on which all generators act alike have the same row."""
    rows.sort_indices()
    parts = [slice(a, b) for a, b in itertools.pairwise(rows.indptr)]
    keys = {(rows.indices[part].tobytes(), rows.data[part].tobytes()): k for k, part in enumerate(parts)}
    return rows[np.array(sorted(keys.values()), int)]


def _direction(rows: Sparse) -> np.ndarray | None:
    """Return d with rows @ d >= 0 and not zero, of the smallest sum of |d| for its descent; None if there is none."""
    from scipy.optimize import linprog
    from scipy.sparse import hstack

    both = hstack([rows, -rows]).tocsr()  # d is the difference of two positive vectors
    total = np.asarray(both.sum(axis=0)).reshape(1, -1)
    solved = linprog(np.ones(both.shape[1]), A_ub=-both, b_ub=np.zeros(both.shape[0]), A_eq=total, b_eq=[1.0])
    if not solved.success:
        return None
    direction = solved.x[: rows.shape[1]] - solved.x[rows.shape[1] :]
    direction = np.where(np.abs(direction) > ROUNDING * np.abs(direction).max(), direction, 0.0)
    change = rows @ direction
    scale = np.abs(direction).max()
    falls = change.max() > 1e3 * ROUNDING * scale and change.min() > -1e3 * ROUNDING * scale
    return direction / scale if falls else None
