"""Gradients of single samples at random points around params: the evidence in which symmetries are searched."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow.problem import AbstractSampled, Population
from undertow.symmetry import precision

__all__ = ["Evidence", "gather_evidence", "inner_products", "norm_products"]


@dataclass(frozen=True)
class Evidence:
    """Params and gradients of every leaf at many points, stacked on a leading axis."""

    names: list[str]
    params: list[np.ndarray]
    gradients: list[np.ndarray]
    alive: list[np.ndarray]
    """For every leaf, a mask of the entries whose gradient is not always zero."""
    tolerance: float


def gather_evidence(problem: AbstractSampled | Population, params: PyTree, key: Array, points: int) -> Evidence:
    """Return gradients of single samples at random points around params."""
    if isinstance(problem, Population):
        data = jax.vmap(problem.draw)(jax.random.split(jax.random.fold_in(key, 0), points))
        data = precision.widened(data)
    else:
        data = trees.take(problem.data, jax.random.randint(jax.random.fold_in(key, 0), (points,), 0, problem.size))
    working = precision.coarsest(problem.sample_loss, params, trees.take(data, 0))
    if precision.is_half(working):
        raise ValueError(
            f"`find_symmetries`: the loss computes in {working.name}, whose rounding hides which directions are "
            "symmetries; cast to float32 or float64 inside the loss instead (params and data may be of any precision)."
        )
    sampled, gradients = _gradients_nearby(problem, params, jax.random.split(jax.random.fold_in(key, 1), points), data)
    leaves, grads = ([np.asarray(x, np.float64) for x in jax.tree.leaves(tree)] for tree in (sampled, gradients))
    good = np.all([np.isfinite(g).reshape(points, -1).all(1) for g in grads], axis=0)
    if not good.any():
        raise ValueError("`find_symmetries`: no gradient near params is finite; check the loss and the data.")
    # gradients are scaled to the same length, so that every sample has the same weight
    length = np.sqrt(sum((g.reshape(points, -1) ** 2).sum(1) for g in grads))
    good &= length > 0
    if not good.any():
        raise ValueError("`find_symmetries`: all gradients near params vanish; check the loss and the data.")
    leaves = [x[good] for x in leaves]
    grads = [(g[good].T / length[good]).T for g in grads]
    alive = [np.asarray(np.abs(g).max(0) > 1e-12) for g in grads]
    eps = float(jnp.finfo(working).eps)
    return Evidence(trees.names(params), leaves, grads, alive, eps**0.6)


def _gradients_nearby(
    problem: AbstractSampled | Population, params: PyTree, keys: Array, data: PyTree
) -> tuple[PyTree, PyTree]:
    """Return one random point for each key, and the gradient of one sample at each point."""

    def nearby(k: Array) -> PyTree:
        drawn = trees.standard_normal(k, params)

        def move(leaf: Array, z: Array) -> Array:
            scale = jnp.sqrt(jnp.mean(leaf**2))
            return leaf + 0.5 * jnp.where(scale > 0, scale, 0.5) * z

        return jax.tree.map(move, params, drawn)

    @jax.jit
    def evaluate(keys: Array, samples: PyTree) -> tuple[PyTree, PyTree]:
        sampled = jax.vmap(nearby)(keys)
        one = lambda row: jax.grad(problem.sample_loss)(*row)
        return sampled, jax.lax.map(one, (sampled, samples), batch_size=256)

    return evaluate(keys, data)


def inner_products(evidence: Evidence, leaf: int, axis: int) -> np.ndarray:
    """Return <params, gradient> for each index along an axis of a leaf: (points, length)."""
    product = evidence.params[leaf] * evidence.gradients[leaf]
    return product.sum(axis=tuple(k for k in range(1, product.ndim) if k != axis + 1))


def norm_products(evidence: Evidence, leaf: int, axis: int) -> np.ndarray:
    """Return |params| |gradient| for each index along an axis: the scale of `inner_products`."""
    rest = tuple(k for k in range(1, evidence.params[leaf].ndim) if k != axis + 1)
    norm = lambda x: np.sqrt((x**2).sum(axis=rest))
    return norm(evidence.params[leaf]) * norm(evidence.gradients[leaf])
