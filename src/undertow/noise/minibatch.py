"""Minibatch noise: the gradient over a random batch."""

import equinox as eqx
import jax
from jaxtyping import Array, Key, PyTree

from undertow._calls import RenamedAttribute, checked_call
from undertow._validate import KeyLike
from undertow.covariance import SampleCovariance
from undertow.noise import sampling
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractSampled, Population, batch_gradient

__all__ = ["Minibatch"]


class Minibatch(AbstractNoise):
    """The mean gradient of `batch_size` samples, drawn anew at every step.

    The covariance of a batch of b out of n samples is Sigma_1/b with replacement and (n - b)/(n - 1) Sigma_1/b without
    replacement (`replace=False`: every step draws an independent subset), where Sigma_1 is the covariance of one
    sample's gradient. On a `Population` every step draws fresh samples.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([0.0, 4.0]))
    >>> noise = ut.Minibatch(problem, batch_size=1)
    >>> print(abs(noise.draw(jax.random.key(0), jnp.array(2.0))), noise.covariance(jnp.array(2.0)).trace())
    2.0 4.0
    """

    problem: AbstractSampled | Population
    batch_size: int = eqx.field(static=True)
    replace: bool = eqx.field(static=True)
    size = RenamedAttribute("batch_size")

    @checked_call("Minibatch", size="batch_size")
    def __init__(self, problem: AbstractSampled | Population, batch_size: int, replace: bool = True):
        self.batch_size = sampling.check_batch_size("Minibatch", problem, batch_size, replace)
        self.problem = problem
        self.replace = bool(replace)

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        if isinstance(self.problem, Population):
            samples = jax.vmap(self.problem.draw)(jax.random.split(key, count * self.batch_size))
            if self.batch_size == 1:
                return samples
            return jax.tree.map(lambda x: x.reshape(count, self.batch_size, *x.shape[1:]), samples)
        return sampling.indices(key, self.problem, count, self.batch_size, self.replace)

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        if not isinstance(self.problem, Population):
            return self.problem.batch_gradient(params, slice)
        return batch_gradient(self.problem.sample_loss, params, slice, single=self.batch_size == 1)

    def covariance(self, params: PyTree, *, key: KeyLike | None = None, samples: int = 4096) -> SampleCovariance:
        """Return the covariance of one batch; on a `Population` it is estimated from `samples` draws of `key`."""
        if isinstance(self.problem, Population):
            reference = self.problem.reference(key, samples, function="Minibatch.covariance")
            return SampleCovariance(reference, params, samples / (samples - 1) / self.batch_size)
        factor = sampling.factor_of_size(self.problem, self.batch_size, self.replace)
        return SampleCovariance(self.problem, params, factor)

    def mean(self, params: PyTree) -> PyTree:
        if isinstance(self.problem, Population):
            raise TypeError(
                "`Minibatch.mean`: the expected gradient of a `Population` is only known by Monte Carlo; use "
                "`population.estimate_gradient(params, key=...)`, or fix the data with `population.sample(key, count)`."
            )
        return self.problem.gradient(params)
