"""Additive noise: the full gradient plus a Gaussian whose factor may depend on params."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow._calls import check_function, check_repeats, checked_call, output_of
from undertow._validate import concrete
from undertow.covariance import Factored
from undertow.noise.base import AbstractNoise, normals, normals_now
from undertow.noise.isotropic import check_full_gradient
from undertow.problem import AbstractProblem

__all__ = ["Additive", "noiseless"]


class Additive(AbstractNoise):
    """Gaussian noise with a given factor B: the stochastic gradient is grad L + B(params) N(0, I_k).

    `factor(params)` returns B, shaped like params with one extra trailing axis k. For flat params B is a D x k matrix,
    and the covariance is B B'.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> flat = ut.Problem(lambda w, _: 0.0 * jnp.sum(w), jnp.zeros(1))
    >>> along_first = ut.Additive(flat, factor=lambda w: jnp.array([[1.0], [0.0]]))
    >>> print(along_first.covariance(jnp.zeros(2)).mv(jnp.ones(2)))
    [1. 0.]
    """

    problem: AbstractProblem
    factor: Callable[[PyTree], PyTree]

    @checked_call("Additive")
    def __init__(self, problem: AbstractProblem, factor: Callable[[PyTree], PyTree]):
        check_full_gradient("Additive", problem)
        if not callable(factor) and hasattr(factor, "shape"):
            raise TypeError(
                "`Additive(factor=array)`: `factor` is an array; give a function `factor(params)`: for a constant "
                "matrix "
                "B `lambda params: B`."
            )
        check_function("Additive", "factor(params)", factor)
        self.problem = problem
        self.factor = factor

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        return normals(key, count, None if like is None else self._normal_structure(like))

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        disturbance = trees.columns(self.factor(params), normals_now(slice, self._normal_structure(params)))
        return trees.add(self.problem.gradient(params), disturbance)

    def covariance(self, params: PyTree) -> Factored:
        self._normal_structure(params)
        return Factored(self.factor(params))

    def check(self, params: PyTree) -> None:
        self.problem.check(params)
        self._normal_structure(params)
        if all(map(concrete, jax.tree.leaves(params))):
            check_repeats("Additive", "factor(params)", self.factor, params)

    def _normal_structure(self, params: PyTree) -> jax.ShapeDtypeStruct:
        """Return the shape of the k normals of a draw, after checking the shape of the factor."""
        factor = output_of("Additive", "factor(params)", self.factor, params)
        if jax.tree.structure(factor) != jax.tree.structure(params):
            raise ValueError(
                f"`Additive`: `factor(params)` is {trees.outline(factor)}, params are {trees.outline(params)}; "
                "return a pytree like params, each leaf with one extra trailing axis."
            )
        ranks = set()
        for leaf, column in zip(jax.tree.leaves(params), jax.tree.leaves(factor), strict=True):
            if column.shape[:-1] != leaf.shape or column.ndim != leaf.ndim + 1:
                raise ValueError(
                    f"`Additive`: `factor(params)` has a leaf of shape {column.shape} where params have {leaf.shape}; "
                    f"give {(*leaf.shape, 'k')}, one extra trailing axis."
                )
            if not jnp.issubdtype(column.dtype, jnp.floating):
                raise ValueError(
                    f"`Additive`: `factor(params)` has dtype {column.dtype}; return real floating-point arrays."
                )
            ranks.add(column.shape[-1])
        if len(ranks) != 1:
            raise ValueError(f"`Additive`: the trailing axes of `factor(params)` differ: {sorted(ranks)}; use one k.")
        return jax.ShapeDtypeStruct((ranks.pop(),), jax.tree.leaves(factor)[0].dtype)


def noiseless(problem: AbstractProblem) -> Additive:
    """Return a noise that is zero, with which SGD is gradient descent: each draw multiplies one number by zero.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.noise.additive import noiseless
    >>> bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    >>> print(noiseless(bowl).draw(jax.random.key(0), jnp.ones(2)))
    [1. 1.]
    """
    return Additive(problem, _no_columns)


def _no_columns(params: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros((*leaf.shape, 1), leaf.dtype), params)
