"""Picks: functions that select the entries of params on which a symmetry acts, as in `equinox.tree_at`.

A pick returns one array or a pytree of arrays made of entries of params: whole leaves, slices, transposes, reshapes. A
pick is linear, so its transpose writes values back. Applied to the numbers of the entries, it returns their positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees

__all__ = ["Pick", "Piece", "describe", "entries", "pieces", "replace", "scatter", "selected"]

Pick = Callable[[PyTree], PyTree]


def selected(pick: Pick, vector: PyTree) -> list[Array]:
    """Return the picked arrays."""
    return jax.tree.leaves(pick(vector))


def scatter(pick: Pick, like: PyTree, values: PyTree) -> PyTree:
    """Return a tree with `values`, shaped like the picked arrays, at the picked entries and zero elsewhere."""
    picked, back = jax.vjp(pick, like)
    shaped = jax.tree.map(lambda x, v: jnp.broadcast_to(v, x.shape).astype(x.dtype), picked, values)
    return back(shaped)[0]


def replace(pick: Pick, params: PyTree, values: PyTree) -> PyTree:
    """Return params with the picked entries replaced."""
    where = scatter(pick, params, jax.tree.map(jnp.ones_like, pick(params)))
    return jax.tree.map(lambda w, new, old: jnp.where(w > 0, new, old), where, scatter(pick, params, values), params)


def entries(pick: Pick, params: PyTree, first: int = 0) -> list[np.ndarray]:
    """Return the picked arrays as numbers of entries, counted from `first` through all leaves in order."""
    leaves, structure = jax.tree.flatten(params)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    starts = first + np.concatenate([[0], np.cumsum(sizes)])
    numbered = [np.arange(a, b).reshape(leaf.shape) for a, b, leaf in zip(starts, starts[1:], leaves, strict=False)]
    with jax.ensure_compile_time_eval():  # a pick may use jax.numpy, and be called while tracing
        return [np.asarray(x) for x in jax.tree.leaves(pick(jax.tree.unflatten(structure, numbered)))]


@dataclass(frozen=True, eq=False)
class Piece:
    """Entries of one leaf: those at the indices `own` along `axis` and `other` along the remaining axes."""

    leaf: int
    axis: int
    own: np.ndarray
    other: np.ndarray | None
    """None for all indices."""


def pieces(pick: Pick, params: PyTree, axis: int) -> list[Piece] | None:
    """Return the picked arrays as pieces of leaves, with `axis` of each array along `own`; None if impossible."""
    leaves = jax.tree.leaves(params)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    collected = []
    for ids in entries(pick, params):
        if ids.ndim == 0:
            return None
        index = int(np.searchsorted(starts, ids.flat[0], side="right")) - 1
        local = np.moveaxis(ids, axis, 0).reshape(ids.shape[axis], -1) - starts[index]
        if local.min() < 0 or local.max() >= sizes[index]:
            return None
        piece = _piece(local, index, tuple(leaves[index].shape))
        if piece is None:
            return None
        collected.append(piece)
    return collected


def _piece(local: np.ndarray, leaf: int, shape: tuple[int, ...]) -> Piece | None:
    """Return entry numbers (own, other) of a leaf as index sets along one axis and along all the others."""
    places = np.stack(np.unravel_index(local, shape))  # (dimensions, own, other)
    for axis in range(len(shape)):
        own = places[axis][:, 0]
        rest = np.delete(places, axis, axis=0)
        along = (places[axis] == own[:, None]).all() and (rest == rest[:, :1]).all()
        if along:
            sizes = tuple(np.delete(np.array(shape), axis))
            other = np.ravel_multi_index(tuple(rest[:, 0]), sizes) if sizes else np.zeros(1, int)
            whole = other.size == int(np.prod(sizes)) and (other == np.arange(other.size)).all()
            return Piece(leaf, axis, own, None if whole else other)
    return None


def describe(pick: Pick, params: PyTree) -> str:
    """Return the names of the leaves that a pick selects from, as paths in params."""
    names = trees.names(params)
    starts = np.cumsum([0, *(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))])[:-1]
    taken: list[str] = []
    for ids in entries(pick, params):
        for leaf in np.unique(np.searchsorted(starts, ids.ravel(), side="right") - 1):
            if names[leaf] not in taken:
                taken.append(names[leaf])
    return ", ".join(taken)
