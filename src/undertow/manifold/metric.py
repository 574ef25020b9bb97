"""A problem and its noise in the coordinates in which a diagonal metric is the identity.

An optimiser with a frozen metric S takes steps theta - eta S g. In the coordinates phi = S^(-1/2) theta these are steps
of SGD on the loss L(S^(1/2) phi), whose noise has the covariance S^(1/2) Sigma S^(1/2). So the theory of SGD applies to
the rescaled noise, and its velocities times S^(1/2) are those of theta.
"""

from collections.abc import Callable
from functools import singledispatch

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from undertow.covariance import AbstractCovariance, LabelCovariance, Projected, SampleCovariance, Sum
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractProblem, Regression

__all__ = ["RescaledNoise", "RescaledProblem", "rescale_problem"]


class _Rescaled(eqx.Module):
    """A function of (params, sample) as a function of (params/root, sample)."""

    function: Callable[[PyTree, PyTree], Array]
    root: PyTree

    def __call__(self, params: PyTree, sample: PyTree) -> Array:
        return self.function(_multiply(self.root, params), sample)


class RescaledProblem(AbstractProblem):
    """The loss L(root phi) of a problem, as a function of phi.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.manifold.metric import RescaledProblem
    >>> bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    >>> print(RescaledProblem(bowl, jnp.array([1.0, 2.0])).gradient(jnp.ones(2)))
    [1. 4.]
    """

    problem: AbstractProblem
    root: PyTree

    def loss(self, params: PyTree) -> Array:
        return self.problem.loss(_multiply(self.root, params))

    def gradient(self, params: PyTree) -> PyTree:
        return _multiply(self.root, self.problem.gradient(_multiply(self.root, params)))

    def check(self, params: PyTree) -> None:
        self.problem.check(_multiply(self.root, params))


def rescale_problem(problem: AbstractProblem, root: PyTree) -> AbstractProblem:
    """Return L(root phi); a `Regression` stays one, so that no D x D matrix is formed for it."""
    if isinstance(problem, Regression):
        return eqx.tree_at(lambda p: p.predict, problem, _Rescaled(problem.predict, root))
    return RescaledProblem(problem, root)


class RescaledNoise(AbstractNoise):
    """A noise in the coordinates phi = params/root, where `root` is the square root of a diagonal metric.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.manifold.metric import RescaledNoise
    >>> bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    >>> noise = RescaledNoise(ut.Isotropic(bowl, 1.0), jnp.array([1.0, 2.0]))
    >>> print(noise.covariance(jnp.zeros(2)).mv(jnp.ones(2)))
    [1. 4.]
    """

    noise: AbstractNoise
    root: PyTree
    problem: AbstractProblem

    def __init__(self, noise: AbstractNoise, root: PyTree):
        self.noise = noise
        self.root = root
        self.problem = rescale_problem(noise.problem, root)

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        return self.noise.randomness(key, count, like)

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        return _multiply(self.root, self.noise.gradient(_multiply(self.root, params), slice))

    def covariance(self, params: PyTree) -> AbstractCovariance:
        return _rescaled(self.noise.covariance(_multiply(self.root, params)), self, params)

    def mean(self, params: PyTree) -> PyTree:
        return _multiply(self.root, self.noise.mean(_multiply(self.root, params)))

    @property
    def mean_samples(self) -> int | None:
        """The number of independent draws that `mean` averages; None where `mean` is exact."""
        return self.noise.mean_samples

    def check(self, params: PyTree) -> None:
        self.noise.check(_multiply(self.root, params))


@singledispatch
def _rescaled(covariance: AbstractCovariance, noise: RescaledNoise, params: PyTree) -> AbstractCovariance:
    """Return S^(1/2) Sigma S^(1/2), of the same type where the problem is a `Regression`."""
    return Projected(covariance, lambda v: _multiply(noise.root, v))


@_rescaled.register(Sum)
def _(covariance: Sum, noise: RescaledNoise, params: PyTree) -> Sum:
    return Sum(tuple(_rescaled(part, noise, params) for part in covariance.parts))


@_rescaled.register(LabelCovariance)
def _(covariance: LabelCovariance, noise: RescaledNoise, params: PyTree) -> LabelCovariance:
    problem = _problem_of(covariance, noise)
    assert isinstance(problem, Regression)
    return LabelCovariance(problem, params, covariance.amount)


@_rescaled.register(SampleCovariance)
def _(covariance: SampleCovariance, noise: RescaledNoise, params: PyTree) -> SampleCovariance | Projected:
    problem = _problem_of(covariance, noise)
    if not isinstance(problem, Regression):
        return Projected(covariance, lambda v: _multiply(noise.root, v))
    return SampleCovariance(problem, params, covariance.amount, covariance.groups, covariance.group_count)


def _problem_of(covariance: LabelCovariance | SampleCovariance, noise: RescaledNoise) -> AbstractProblem:
    """Return the rescaled problem of a covariance: the very object of the noise where both have the same problem."""
    same = covariance.problem is noise.noise.problem
    return noise.problem if same else rescale_problem(covariance.problem, noise.root)


def _multiply(root: PyTree, vector: PyTree) -> PyTree:
    return jax.tree.map(jnp.multiply, root, vector)
