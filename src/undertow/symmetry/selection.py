"""Which entries of params a symmetry speaks of: a function that picks them, as in `equinox.tree_at`.

A pick returns one array or a pytree of arrays made of entries of params: whole leaves, slices, transposes, reshapes. It
is linear, so that its transpose writes back, and applied to the numbers of the entries it says where they lie.
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
    """The picked arrays."""
    return jax.tree.leaves(pick(vector))


def scatter(pick: Pick, like: PyTree, values: PyTree) -> PyTree:
    """`values`, shaped like the picked arrays, in their places; zero elsewhere."""
    picked, back = jax.vjp(pick, like)
    shaped = jax.tree.map(lambda x, v: jnp.broadcast_to(v, x.shape).astype(x.dtype), picked, values)
    return back(shaped)[0]


def replace(pick: Pick, params: PyTree, values: PyTree) -> PyTree:
    """params with the picked entries replaced."""
    where = scatter(pick, params, jax.tree.map(jnp.ones_like, pick(params)))
    return jax.tree.map(lambda w, new, old: jnp.where(w > 0, new, old), where, scatter(pick, params, values), params)


def entries(pick: Pick, params: PyTree) -> list[np.ndarray]:
    """The picked arrays as numbers of entries, counted through all leaves in order."""
    leaves, structure = jax.tree.flatten(params)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    numbered = [np.arange(a, b).reshape(leaf.shape) for a, b, leaf in zip(starts, starts[1:], leaves, strict=False)]
    with jax.ensure_compile_time_eval():  # a pick may use jax.numpy, and be called while tracing
        return [np.asarray(x) for x in jax.tree.leaves(pick(jax.tree.unflatten(structure, numbered)))]


@dataclass(frozen=True, eq=False)
class Piece:
    """Entries of one matrix-shaped leaf: those at `own` along `axis` and `other` along the rest, in this order."""

    leaf: int
    axis: int
    own: np.ndarray
    other: np.ndarray | None
    """None: all of them."""


def pieces(pick: Pick, params: PyTree, axis: int) -> list[Piece] | None:
    """The picked arrays as pieces of leaves, `axis` of each array running along `own`; None where they are not such."""
    leaves = jax.tree.leaves(params)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    found = []
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
        found.append(piece)
    return found


def _piece(local: np.ndarray, leaf: int, shape: tuple[int, ...]) -> Piece | None:
    """Entry numbers (own, other) of a leaf as index sets along one axis and along all the others."""
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
    """The names of the leaves a pick takes from, as the paths in params."""
    names = trees.names(params)
    starts = np.cumsum([0, *(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))])[:-1]
    taken: list[str] = []
    for ids in entries(pick, params):
        for leaf in np.unique(np.searchsorted(starts, ids.ravel(), side="right") - 1):
            if names[leaf] not in taken:
                taken.append(names[leaf])
    return ", ".join(taken)
