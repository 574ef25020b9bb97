"""Loops over samples in bounded memory: in chunks whose gradients fit a fixed budget."""

from collections.abc import Callable

import jax
from jaxtyping import PyTree

from undertow import _trees as trees

__all__ = ["BUDGET_BYTES", "chunk_length", "map_samples", "sum_samples"]

BUDGET_BYTES = 256 * 2**20
"""The most bytes that the per-sample arrays of one chunk take together."""


def chunk_length(bytes_each: int) -> int:
    """Return the number of samples of `bytes_each` bytes in one chunk."""
    return max(1, BUDGET_BYTES // max(1, bytes_each))


def map_samples(function: Callable, samples: PyTree, chunk: int) -> PyTree:
    """Return function(sample) for every sample, stacked; computed `chunk` samples at a time."""
    if jax.tree.leaves(samples)[0].shape[0] <= chunk:
        return jax.vmap(function)(samples)
    return jax.lax.map(function, samples, batch_size=chunk)


def sum_samples(function: Callable, samples: PyTree, chunk: int) -> PyTree:
    """Return the sum of function(block) over blocks of at most `chunk` samples; `function` sums within a block."""
    total = jax.tree.leaves(samples)[0].shape[0]
    if total <= chunk:
        return function(samples)
    full = total - total % chunk
    blocks = jax.tree.map(lambda x: x[:full].reshape(full // chunk, chunk, *x.shape[1:]), samples)
    first = function(trees.take(blocks, 0))
    rest = jax.tree.map(lambda x: x[1:], blocks)
    partial, _ = jax.lax.scan(lambda carry, block: (trees.add(carry, function(block)), None), first, rest)
    if full < total:
        partial = trees.add(partial, function(jax.tree.map(lambda x: x[full:], samples)))
    return partial
