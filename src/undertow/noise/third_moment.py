"""The third central moments of a stochastic gradient, as a weighted sum over explicit vectors.

E y_i y_j y_k = sum_m w_m y_mi y_mj y_mk,     y = g - E g
"""

from functools import singledispatch
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.noise import sampling
from undertow.noise.additive import Additive
from undertow.noise.base import AbstractNoise
from undertow.noise.isotropic import Isotropic
from undertow.noise.label import LabelNoise
from undertow.noise.minibatch import Minibatch
from undertow.noise.sampled import SampledNoise
from undertow.problem import AbstractSampled

__all__ = ["DRAWS", "ThirdMoment", "third_moment"]

DRAWS = 4096
"""The number of draws, with a fixed key, from which the moments of a noise without a formula are estimated."""


class ThirdMoment(NamedTuple):
    """The third central moments of a gradient in flat coordinates."""

    weights: Float[Array, " vectors"]
    """The weights w_m; they may be negative."""
    vectors: Float[Array, "vectors D"]

    def squares_along(self, directions: Float[Array, "D r"]) -> Float[Array, "D r"]:
        """Return E y_i^2 (y . u) for every parameter i and every column u."""
        return (self.vectors**2 * self.weights[:, None]).T @ (self.vectors @ directions)

    def cubes(self) -> Float[Array, " D"]:
        """Return E y_i^3 for every parameter."""
        return self.weights @ self.vectors**3


@singledispatch
def third_moment(noise: AbstractNoise, params: PyTree) -> ThirdMoment | None:
    """Return the third central moments of one draw; None where they are zero because the noise is Gaussian.

    Those of `Minibatch` and `LabelNoise` are exact, those of `SampledNoise` the ones of its samples, and those of any
    other noise are estimated from `DRAWS` draws.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.noise.third_moment import third_moment
    >>> problem = ut.Problem(lambda w, x: w * x, jnp.array([0.0, 0.0, 3.0]))
    >>> print(third_moment(ut.Minibatch(problem, batch_size=1), jnp.zeros(())).cubes())
    [2.]
    """
    slices = noise.randomness(jax.random.key(0), DRAWS, None)
    drawn = chunks.map_samples(lambda s: trees.ravel(noise.gradient(params, s)), slices, _chunk(params))
    return _equal(drawn - trees.ravel(noise.mean(params))[None])


@third_moment.register(Isotropic)
@third_moment.register(Additive)
def _gaussian(noise: Isotropic | Additive, params: PyTree) -> None:
    return None


@third_moment.register(SampledNoise)
def _sampled(noise: SampledNoise, params: PyTree) -> ThirdMoment:
    drawn = jax.vmap(trees.ravel)(noise.sampled_gradients(params))
    return _equal(drawn - jnp.mean(drawn, axis=0, keepdims=True))


@third_moment.register(Minibatch)
def _minibatch(noise: Minibatch, params: PyTree) -> ThirdMoment:
    assert isinstance(noise.problem, AbstractSampled)
    weights, centred = _samples(noise.problem, params)
    return ThirdMoment(_batch_factor(noise.problem, noise.batch_size, noise.replace) * weights, centred)


@third_moment.register(LabelNoise)
def _label(noise: LabelNoise, params: PyTree) -> ThirdMoment:
    """Return the moments of a + b_1 e_1 + b_2 e_2 + ... with independent symmetric e of variance 1.

    For a cubic form f and one output, E f(a + b e) = (f(a + b) + f(a - b))/2; more outputs add their terms.
    """
    problem = noise.problem
    weights, centred = _samples(problem, params)
    rows = chunks.map_samples(
        lambda x: jax.vmap(trees.ravel)(problem.rows(params, x)), problem.inputs, problem.chunk(params)
    )
    # the products of a mean gradient with the disturbances of two labels: those of one sample and of different samples
    each = sampling.factor_of_size(problem, noise.batch_size, noise.replace) / noise.batch_size * weights
    plain = _batch_factor(problem, noise.batch_size, noise.replace) * weights - rows.shape[1] * each
    moved = jnp.concatenate([centred[:, None] + sign * noise.strength * rows for sign in (1, -1)], axis=1)
    halves = jnp.repeat(each / 2, moved.shape[1])
    return ThirdMoment(jnp.concatenate([plain, halves]), jnp.concatenate([centred, moved.reshape(-1, moved.shape[2])]))


def _samples(problem: AbstractSampled, params: PyTree) -> tuple[Array, Array]:
    """Return the probability of every sample, and its gradient minus the mean."""
    gradients = jax.vmap(trees.ravel)(problem.sample_gradients(params))
    weights = problem.probabilities.astype(gradients.dtype)
    return weights, trees.centre(gradients, weights)


def _batch_factor(problem: AbstractSampled, size: int, replace: bool) -> float:
    """Return the third moment of the mean of a batch over that of one sample."""
    n = problem.size
    if replace:
        return 1 / size**2
    return (n - size) * (n - 2 * size) / (max(n - 1, 1) * max(n - 2, 1) * size**2)


def _equal(vectors: Float[Array, "vectors D"]) -> ThirdMoment:
    return ThirdMoment(jnp.full((vectors.shape[0],), 1 / vectors.shape[0], vectors.dtype), vectors)


def _chunk(params: PyTree) -> int:
    return chunks.chunk_length(trees.floats_bytes(params))
