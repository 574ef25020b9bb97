"""A noise that is given by a function that draws it: mean and covariance are estimated from draws."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow._calls import check_function, check_repeats, checked_call, output_of
from undertow._validate import KeyLike, as_key, concrete, flag, positive_integer
from undertow.covariance import EstimatedCovariance
from undertow.noise.base import AbstractNoise
from undertow.noise.isotropic import check_full_gradient
from undertow.problem import AbstractProblem

__all__ = ["SampledNoise"]


class SampledNoise(AbstractNoise):
    """A stochastic gradient that a function draws: dropout, augmentation, clipped gradients, any other randomness.

    **Arguments:** `problem` is the loss whose gradient the draws have on average; `draw(key, params)` returns one
    stochastic gradient, a pytree like params, from one key of `jax.random`; `samples` is the number of draws from which
    the covariance is estimated, and `key` fixes these draws, so that the covariance is a function of params alone.

    `unbiased=False` states that the mean of the draws is not the gradient of `problem`. Dropout is an example: the mean
    is the gradient of the expected dropout loss. `mean` is then the average of the same `samples` draws. SGD, its SDE
    and the Noether flow follow this mean. `Limit` needs the loss whose gradient is the mean, so give such a `problem`.

    The covariance has rank `samples` - 1 and takes the memory of `samples` gradients; each evaluation computes them
    anew, which `diffuse` does at every step. Its relative standard error along a direction is sqrt(2/(samples - 1)) for
    Gaussian draws: 4.4% for 1024. `covariance(params).trace_error()` and `noether_flow(...).standard_error` measure
    it.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    >>> def draw(key, w):  # each coordinate is dropped with probability 1/2
    ...     return w * 2 * jax.random.bernoulli(key, 0.5, w.shape)
    >>> noise = ut.SampledNoise(bowl, draw, samples=4096)
    >>> sigma = noise.covariance(jnp.array([1.0, 2.0]))
    >>> print(bool(abs(sigma.trace() - 5) < 4 * sigma.trace_error()))
    True
    """

    problem: AbstractProblem
    drawer: Callable[[Key[Array, ""], PyTree], PyTree]
    keys: Key[Array, " samples"]
    unbiased: bool = eqx.field(static=True)

    @checked_call("SampledNoise")
    def __init__(
        self,
        problem: AbstractProblem,
        draw: Callable[[Key[Array, ""], PyTree], PyTree],
        samples: int = 1024,
        *,
        key: KeyLike = 0,
        unbiased: bool = True,
    ):
        check_full_gradient("SampledNoise", problem)
        check_function("SampledNoise", "draw(key, params)", draw)
        samples = positive_integer("SampledNoise", "samples", samples, least=2)
        self.problem = problem
        self.drawer = draw
        self.keys = jax.random.split(as_key("SampledNoise", key), samples)
        self.unbiased = flag("SampledNoise", "unbiased", unbiased)

    @property
    def samples(self) -> int:
        """The number of draws from which the covariance is estimated."""
        return self.keys.shape[0]

    @property
    def mean_samples(self) -> int | None:
        """The number of draws that `mean` averages; None where `mean` is the gradient of the problem."""
        return None if self.unbiased else self.samples

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        return jax.random.split(key, count)

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        return self.drawer(slice, params)

    def mean(self, params: PyTree) -> PyTree:
        if self.unbiased:
            return self.problem.gradient(params)
        return trees.weigh(jnp.full((self.samples,), 1 / self.samples), self.sampled_gradients(params))

    def covariance(self, params: PyTree) -> EstimatedCovariance:
        return EstimatedCovariance.of(self.sampled_gradients(params))

    def sampled_gradients(self, params: PyTree) -> PyTree:
        """Return the fixed draws at params on a leading axis; this takes `samples` times the memory of params."""
        chunk = chunks.chunk_length(trees.floats_bytes(params))
        return chunks.map_samples(lambda key: self.drawer(key, params), self.keys, chunk)

    def check(self, params: PyTree) -> None:
        self.problem.check(params)
        called, key = "draw(key, params)", jax.random.key(0)
        difference = trees.mismatch(output_of("SampledNoise", called, self.drawer, key, params), params, called)
        if difference:
            raise ValueError(f"`SampledNoise`: {difference}.")
        if all(map(concrete, jax.tree.leaves(params))):
            check_repeats("SampledNoise", called, self.drawer, key, params)
