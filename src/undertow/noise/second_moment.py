"""The mean squares E g^2 of a stochastic gradient, and their derivatives along many directions in one pass."""

from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.noise import sampling
from undertow.noise.base import AbstractNoise, second_moment
from undertow.noise.label import LabelNoise
from undertow.noise.minibatch import Minibatch
from undertow.problem import AbstractSampled

__all__ = ["SampledSquares", "SquaresAlong", "sampled_squares", "squares_along"]

COLUMNS = 64
"""The number of directions along which derivatives are taken together, for a noise without samples."""

CACHED_BYTES = 2**16
"""The size of the derivatives of one block of samples. They stay in the cache of a core while they are summed."""


class SampledSquares(NamedTuple):
    """E g^2 = sum_m each(params, sample m) + rest(params)."""

    samples: PyTree
    each: Callable[[PyTree, PyTree], PyTree]
    rest: Callable[[PyTree], PyTree] | None
    """The part that does not depend on a sample; None if it is zero."""


class SquaresAlong(NamedTuple):
    """E g^2 for each parameter i at a point, with derivatives along pairs of directions (u_k, w_k)."""

    value: Float[Array, " D"]
    slopes: Float[Array, "D k"]
    """The derivative along u_k."""
    second: Float[Array, " D"]
    """The sum over k of the second derivatives along u_k and w_k."""


@singledispatch
def sampled_squares(noise: AbstractNoise) -> SampledSquares | None:
    """Return E g^2 as a sum over samples; None where the noise has none."""
    return None


@sampled_squares.register(Minibatch)
def _minibatch(noise: Minibatch) -> SampledSquares | None:
    problem = noise.problem
    if not isinstance(problem, AbstractSampled):
        return None
    factor = sampling.factor_of_size(problem, noise.batch_size, noise.replace)

    def each(params: PyTree, weighted: PyTree) -> PyTree:
        weight, sample = weighted
        return jax.tree.map(lambda g: weight * factor * g**2, problem.sample_gradient(params, sample))

    return SampledSquares((problem.probabilities, problem.data), each, _squared_mean(problem, 1 - factor))


@sampled_squares.register(LabelNoise)
def _label(noise: LabelNoise) -> SampledSquares:
    problem = noise.problem
    factor = sampling.factor_of_size(problem, noise.batch_size, noise.replace)

    def each(params: PyTree, weighted: PyTree) -> PyTree:
        weight, (x, y) = weighted
        residual = jnp.atleast_1d(problem.predict(params, x) - y)

        def leaf(rows: Array) -> Array:
            labels = noise.strength**2 / noise.batch_size * jnp.sum(rows**2, axis=0)
            return weight * (factor * jnp.tensordot(residual, rows, 1) ** 2 + labels)

        return jax.tree.map(leaf, problem.rows(params, x))

    return SampledSquares((problem.probabilities, problem.data), each, _squared_mean(problem, 1 - factor))


def _squared_mean(problem: AbstractSampled, share: float) -> Callable[[PyTree], PyTree] | None:
    if share == 0:
        return None
    return lambda params: jax.tree.map(lambda g: share * g**2, problem.gradient(params))


def squares_along(
    noise: AbstractNoise,
    params_at: Callable[[Array], PyTree],
    point: Float[Array, " d"],
    left: Float[Array, "d k"],
    right: Float[Array, "d k"],
) -> SquaresAlong:
    """Return E g^2 at `params_at(point)`, with derivatives along the columns of `left` and `right`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.noise.second_moment import squares_along
    >>> bowl = ut.Problem(lambda w, x: (w[0] - x) ** 2 / 2, jnp.array([-1.0, 1.0]))
    >>> along = squares_along(ut.Minibatch(bowl, 1), lambda w: w, jnp.array([3.0]), jnp.eye(1), jnp.eye(1))
    >>> print(along.value, along.slopes, along.second)
    [10.] [[6.]] [2.]
    """
    value = trees.ravel(second_moment(noise, params_at(point)))

    def along(squares: Callable[[PyTree], PyTree], pair: tuple[Array, Array]) -> tuple[Array, Array]:
        u, w = pair
        first = lambda x: jax.jvp(lambda x: trees.ravel(squares(params_at(x))), (x,), (u,))[1]
        return jax.jvp(first, (point,), (w,))

    def one_by_one(squares: Callable[[PyTree], PyTree]) -> tuple[Array, Array]:
        slopes, second = jax.lax.map(lambda pair: along(squares, pair), (left.T, right.T), batch_size=COLUMNS)
        return slopes, jnp.sum(second, axis=0)

    sampled = sampled_squares(noise)
    if sampled is None:
        slopes, second = one_by_one(lambda params: second_moment(noise, params))
        return SquaresAlong(value, slopes.T, second)

    def block(samples: PyTree) -> tuple[Array, Array]:
        def squares(params: PyTree) -> PyTree:
            terms = jax.vmap(lambda sample: sampled.each(params, sample))(samples)
            return jax.tree.map(lambda x: jnp.sum(x, axis=0), terms)

        slopes, second = jax.vmap(lambda u, w: along(squares, (u, w)))(left.T, right.T)
        return slopes, jnp.ones_like(second[:, 0]) @ second  # a sum would recompute the derivatives

    chunk = max(1, CACHED_BYTES // max(1, value.size * left.shape[1] * value.dtype.itemsize))
    slopes, second = chunks.sum_samples(block, sampled.samples, chunk)
    if sampled.rest is not None:
        slopes, second = trees.add((slopes, second), one_by_one(sampled.rest))
    return SquaresAlong(value, slopes.T, second)
