"""Random batches of sample indices: with replacement, by weight, or as a subset."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from undertow._validate import flag, instance, positive_integer, quote
from undertow.problem import AbstractSampled, Population

__all__ = ["check_batch_size", "factor_of_size", "indices", "signs", "subsets", "uniform", "weighted"]


def check_batch_size(function: str, problem: AbstractSampled | Population, batch_size: int, replace: bool) -> int:
    """Return the batch size of a noise on samples; raise where the problem has no such batches."""
    instance(
        function, "problem", problem, AbstractSampled | Population, "a Problem or a Regression, which have samples"
    )
    batch_size = positive_integer(function, "batch_size", batch_size)
    replace = flag(function, "replace", replace)
    if isinstance(problem, Population):
        if not replace:
            raise ValueError(
                f"{quote(function, replace=False)}: a `Population` has fresh samples at every step and nothing to "
                "draw without replacement; leave `replace=True`, or fix the data with `population.sample(key, count)`."
            )
        return batch_size
    if not replace and problem.weights is not None:
        raise ValueError(f"{quote(function, replace=False)}: the samples are weighted; use replace=True.")
    if not replace and batch_size > problem.size:
        raise ValueError(
            f"{quote(function, batch_size=batch_size)}: the problem has {problem.size} samples; "
            f"use batch_size <= {problem.size} or replace=True."
        )
    return batch_size


def factor_of_size(problem: AbstractSampled, size: int, replace: bool) -> float:
    """Return the factor of one sample's covariance in a batch mean: 1/b, times (n - b)/(n - 1) without replacement."""
    if replace:
        return 1 / size
    return (problem.size - size) / (max(problem.size - 1, 1) * size)


def indices(
    key: Key[Array, ""], problem: AbstractSampled, count: int, size: int, replace: bool
) -> Int[Array, " count"] | Int[Array, "count size"]:
    """Return `count` batches of sample indices. A batch of one has no batch axis."""
    shape = (count,) if size == 1 else (count, size)
    if problem.weights is not None:
        return weighted(key, problem.weights, shape)
    if replace or size == 1:
        return uniform(key, problem.size, shape)
    return subsets(key, problem.size, count, size)


def uniform(key: Key[Array, ""], total: int, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Return indices uniform on range(total), from one 32-bit word w each: the upper half of the product w * total.

    No index is more likely than another by more than total/2^32, relatively. Where that exceeds 1e-6, two words
    are used (jax.random.randint), which is slower.
    """
    if total > 4096:
        return jax.random.randint(key, shape, 0, total, jnp.int32)
    words = jax.random.bits(key, shape, jnp.uint32)
    upper, lower = words >> 16, words & 0xFFFF
    return ((upper * total + ((lower * total) >> 16)) >> 16).astype(jnp.int32)


def signs(key: Key[Array, ""], shape: tuple[int, ...], dtype: np.dtype | type) -> Float[Array, "..."]:
    """Return independent +-1 with equal probability, 32 of them from one word."""
    size = math.prod(shape)
    words = jax.random.bits(key, (-(-size // 32), 1), jnp.uint32)
    bits = (words >> jnp.arange(32, dtype=jnp.uint32)[None]) & 1
    return (1 - 2 * bits.reshape(-1)[:size].astype(dtype)).reshape(shape)


def weighted(key: Key[Array, ""], weights: Float[Array, " n"], shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Return indices drawn with the given probabilities, by inverting their cumulative sum."""
    edges = jnp.cumsum(weights)
    drawn = jax.random.uniform(key, shape, edges.dtype) * edges[-1]
    return jnp.minimum(jnp.searchsorted(edges, drawn, side="right"), weights.shape[0] - 1).astype(jnp.int32)


def subsets(key: Key[Array, ""], total: int, count: int, size: int) -> Int[Array, "count size"]:
    """Return `count` independent uniform subsets of range(total), by Floyd's algorithm: O(size^2) each, no sort.

    Member j is t ~ U{0..total-size+j}, or the number total-size+j itself if t was taken before.
    """
    tops = total - size + jnp.arange(size, dtype=jnp.int32)
    proposals = jax.random.randint(key, (count, size), 0, tops[None] + 1, jnp.int32)

    def choose(chosen: Array, j: Array) -> tuple[Array, None]:
        proposal = proposals[:, j]
        taken = jnp.any(chosen == proposal[:, None], axis=1)
        return chosen.at[:, j].set(jnp.where(taken, tops[j], proposal)), None

    empty = jnp.full((count, size), -1, jnp.int32)
    return jax.lax.scan(choose, empty, jnp.arange(size))[0]
