"""Covariances with an explicit factor, and multiples of the identity."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow.covariance.base import AbstractCovariance, Linear, Scalar, sum_over, trace_of

__all__ = ["Factored", "ScaledIdentity"]


class Factored(AbstractCovariance):
    """Sigma = B B' with an explicit factor B (params with a trailing axis k).

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import Factored
    >>> sigma = Factored(jnp.array([[1.0], [2.0]]))
    >>> print(sigma.mv(jnp.array([1.0, 0.0])), sigma.trace())
    [1. 2.] 5.0
    """

    columns: PyTree

    def mv(self, vector: PyTree) -> PyTree:
        return trees.columns(self.columns, self._coefficients(vector))

    def normal_structure(self) -> PyTree:
        leaf = jax.tree.leaves(self.columns)[0]
        return jax.ShapeDtypeStruct((leaf.shape[-1],), leaf.dtype)

    def sqrt_mv(self, normals: PyTree) -> PyTree:
        return trees.columns(self.columns, normals)

    def moment(self, form: Linear) -> PyTree:
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(form, in_axes=-1)(self.columns))

    def trace(self, matrix: Linear | None = None) -> Scalar:
        if matrix is None:
            return trees.dot(self.columns, self.columns)
        image = jax.vmap(matrix, in_axes=-1, out_axes=-1)(self.columns)
        return trees.dot(self.columns, image)

    def factor(self) -> PyTree:
        return self.columns

    def _coefficients(self, vector: PyTree) -> Float[Array, " k"]:
        """Return B'v."""
        parts = [
            jnp.tensordot(leaf, column, axes=leaf.ndim)
            for leaf, column in zip(jax.tree.leaves(vector), jax.tree.leaves(self.columns), strict=True)
        ]
        return sum(parts[1:], parts[0])


class ScaledIdentity(AbstractCovariance):
    """Sigma = variance * I on vectors shaped like `like`.

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import ScaledIdentity
    >>> print(ScaledIdentity(jnp.array(4.0), jnp.zeros(3)).trace())
    12.0
    """

    variance: Scalar
    like: PyTree

    def mv(self, vector: PyTree) -> PyTree:
        return trees.scale(self.variance, vector)

    def normal_structure(self) -> PyTree:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.like)

    def sqrt_mv(self, normals: PyTree) -> PyTree:
        return trees.scale(jnp.sqrt(self.variance), normals)

    def moment(self, form: Linear) -> PyTree:
        unit = trees.elements(self.like)
        return trees.scale(self.variance, sum_over(lambda i: form(unit(i)), trees.count(self.like)))

    def trace(self, matrix: Linear | None = None) -> Scalar:
        if matrix is None:
            return self.variance * trees.count(self.like)
        return self.variance * trace_of(matrix, self.like)

    def factor(self) -> PyTree:
        basis = jax.vmap(trees.elements(self.like), out_axes=-1)(jnp.arange(trees.count(self.like)))
        return trees.scale(jnp.sqrt(self.variance), basis)
