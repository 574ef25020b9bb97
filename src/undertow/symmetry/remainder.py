"""Symmetries beyond the known families: scalings of whole leaves, and the rest of the null space of small models."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow.symmetry.evidence import Evidence
from undertow.symmetry.generators import AbstractSymmetry, Exponential, Rescaling, Scaling
from undertow.symmetry.null_space import echelon, null_space, signs
from undertow.symmetry.picks import LeafPick, pick_of

__all__ = ["dense_generators", "remaining_generators", "scaled_leaves"]


class _Dense(eqx.Module):
    """A generator given as a matrix on flat params."""

    matrix: Array

    def __call__(self, vector: PyTree) -> PyTree:
        flat, unravel = jax.flatten_util.ravel_pytree(vector)
        return unravel(self.matrix.astype(flat.dtype) @ flat)


def scaled_leaves(evidence: Evidence, known: list[AbstractSymmetry], params: PyTree) -> list[AbstractSymmetry]:
    """Return the symmetries that scale whole leaves together and are independent of the known ones."""
    pairs = list(zip(evidence.params, evidence.gradients, strict=True))
    rows = np.stack([(p * g).reshape(len(p), -1).sum(1) for p, g in pairs], 1)
    norm = lambda x: np.sqrt((x.reshape(len(x), -1) ** 2).sum(1))
    scale = np.stack([norm(p) * norm(g) for p, g in pairs], 1).max(0)
    null = null_space(rows, scale, evidence.tolerance)
    if not len(null):
        return []
    actions = np.array([_leaf_vector(s, params) for s in known]).reshape(len(known), rows.shape[1])
    # scalings of all rows of a leaf add up to the scaling of the leaf
    spanned = echelon(np.concatenate([actions, _single_leaves(actions)])) if len(actions) else actions
    return [_leaf_symmetry(vector, params) for vector in _independent(null, spanned)]


def _leaf_vector(symmetry: AbstractSymmetry, params: PyTree) -> np.ndarray:
    """Return the mean over each leaf of the diagonal of A, summed over all generators of a symmetry."""
    ones = jax.tree.map(jnp.ones_like, params)
    moved = symmetry.orbit(ones, 1e-3)
    return np.array([float(jnp.mean(jnp.log(x))) / 1e-3 for x in jax.tree.leaves(moved)])


def _single_leaves(actions: np.ndarray) -> np.ndarray:
    """Return unit vectors of the leaves that some symmetry scales alone."""
    alone = [k for k in range(actions.shape[1]) if any((row != 0).sum() == 1 and row[k] != 0 for row in actions)]
    return np.eye(actions.shape[1])[alone]


def _independent(vectors: np.ndarray, spanned: np.ndarray) -> list[np.ndarray]:
    """Return the vectors that are independent of `spanned` and of the vectors before them."""
    rest: list[np.ndarray] = []
    for vector in vectors:
        span = np.array([*spanned, *rest]).reshape(-1, vectors.shape[1])
        rank = lambda rows: np.linalg.matrix_rank(rows, tol=1e-3)
        if not len(span) or rank(np.vstack([span, vector])) > rank(span):
            rest.append(vector)
    return rest


def _leaf_symmetry(vector: np.ndarray, params: PyTree) -> AbstractSymmetry:
    """Return the symmetry that scales each leaf with its entry of `vector`."""
    pattern = signs(vector)
    if pattern is None:
        diagonal = [jnp.full(leaf.shape, v) for leaf, v in zip(jax.tree.leaves(params), vector, strict=True)]
        return Exponential(jax.tree.unflatten(jax.tree.structure(params), diagonal), "scaling of leaves")
    up = [LeafPick(k) for k, sign in enumerate(pattern) if sign > 0]
    down = [LeafPick(k) for k, sign in enumerate(pattern) if sign < 0]
    return Rescaling(pick_of(up), pick_of(down)) if up and down else Scaling(pick_of(up or down))


def remaining_generators(evidence: Evidence, known: list[AbstractSymmetry], params: PyTree) -> list[AbstractSymmetry]:
    """Return the rest of the null space over all symmetric matrices, for small models."""
    points = len(evidence.params[0])
    flat = np.concatenate([p.reshape(points, -1) for p in evidence.params], axis=1)
    grads = np.concatenate([g.reshape(points, -1) for g in evidence.gradients], axis=1)
    alive = np.concatenate([a.ravel() for a in evidence.alive])
    used = np.flatnonzero(alive)
    size = used.size
    upper = np.triu_indices(size)
    outer = np.einsum("ki,kj->kij", grads[:, used], flat[:, used])
    both = outer + np.swapaxes(outer, 1, 2)
    weights = np.where(upper[0] == upper[1], 0.5, 1.0)
    rows = both[:, upper[0], upper[1]] * weights
    scale = np.sqrt((rows**2).mean(0))
    _, values, right = np.linalg.svd(rows / scale, full_matrices=True)
    values = np.concatenate([values, np.zeros(right.shape[0] - values.size)])
    null = right[values <= 10 * evidence.tolerance * values[0]] / scale

    def triangle(matrix: np.ndarray) -> np.ndarray:
        return matrix[np.ix_(used, used)][upper]

    spanned = [triangle(matrix) for symmetry in known for matrix in dense_generators(symmetry, params)]
    spanned = np.array(spanned).reshape(-1, upper[0].size)
    rest: list[AbstractSymmetry] = []
    basis = np.linalg.qr(spanned.T)[0] if len(spanned) else np.zeros((upper[0].size, 0))
    for vector in null:
        left = vector - basis @ (basis.T @ vector)
        if np.linalg.norm(left) > 1e-3 * np.linalg.norm(vector):
            left = left / np.linalg.norm(left)
            basis = np.concatenate([basis, left[:, None]], axis=1)
            matrix = np.zeros((size, size))
            matrix[upper] = left
            matrix = matrix + np.triu(matrix, 1).T
            whole = np.zeros((alive.size, alive.size))
            whole[np.ix_(used, used)] = matrix / np.abs(matrix).max()
            rest.append(Exponential(_Dense(jnp.asarray(whole))))
    return rest


def dense_generators(symmetry: AbstractSymmetry, params: PyTree) -> list[np.ndarray]:
    """Return the generators of a symmetry as dense matrices: d/d amount of the orbit, column by column."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    shape = jax.eval_shape(symmetry.charge, params).shape
    units = []
    for place in np.ndindex(*shape):
        if len(shape) == 2 and place[0] > place[1]:
            continue
        unit = np.zeros(shape)
        unit[place] = 1
        units.append((unit + unit.T) / 2 if len(shape) == 2 else unit)

    def act(unit: Array) -> Array:
        move = lambda amount, x: jax.flatten_util.ravel_pytree(symmetry.orbit(unravel(x), amount * unit))[0]
        small = 1e-3
        columns = lambda x: (move(small, x) - move(-small, x)) / (2 * small)
        return jax.vmap(columns, out_axes=1)(jnp.eye(flat.size, dtype=flat.dtype))

    return [np.asarray(act(jnp.asarray(unit, flat.dtype)), np.float64) for unit in units]
