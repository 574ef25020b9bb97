"""Isotropic noise: the full gradient plus a Gaussian with the same variance in every direction."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow._calls import checked_call
from undertow._validate import Number, finite_number, instance
from undertow.covariance import ScaledIdentity
from undertow.noise.base import AbstractNoise, normals, normals_now
from undertow.problem import AbstractProblem, Population

__all__ = ["Isotropic", "check_full_gradient"]


class Isotropic(AbstractNoise):
    """Isotropic Gaussian noise: the stochastic gradient is grad L + scale * N(0, I).

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    >>> noise = ut.Isotropic(bowl, scale=0.1)
    >>> print(noise.draw(jax.random.key(0), jnp.ones(2)).shape, noise.covariance(jnp.ones(2)).trace())
    (2,) 0.020000001
    """

    problem: AbstractProblem
    scale: Float[Array, ""]

    @checked_call("Isotropic")
    def __init__(self, problem: AbstractProblem, scale: Number = 1.0):
        check_full_gradient("Isotropic", problem)
        finite_number("Isotropic", "scale", scale)
        self.problem = problem
        self.scale = jnp.asarray(scale, jnp.result_type(float))

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        return normals(key, count, like)

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        return trees.add(self.problem.gradient(params), trees.scale(self.scale, normals_now(slice, params)))

    def covariance(self, params: PyTree) -> ScaledIdentity:
        return ScaledIdentity(self.scale**2, params)


def check_full_gradient(function: str, problem: AbstractProblem) -> None:
    """Raise where the full gradient of `problem`, to which a noise is added, is not known exactly."""
    if isinstance(problem, Population):
        raise TypeError(
            f"`{function}`: the full gradient of a `Population` is only known by Monte Carlo; use `Minibatch`, or fix "
            "a data set with `population.sample(key, count)`."
        )
    instance(function, "problem", problem, AbstractProblem, "a Problem or a Regression")
