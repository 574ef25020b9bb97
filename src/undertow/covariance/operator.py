"""Covariances given by functions, and sums of covariances."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow.covariance.base import AbstractCovariance, Linear, Scalar, trace_of
from undertow.covariance.factored import Factored

__all__ = ["Operator", "Sum"]


class Operator(AbstractCovariance):
    """A covariance given by functions: `matvec(v)` = Sigma v and `square_root(z)` for z shaped like `normals`.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.covariance import Operator
    >>> shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    >>> sigma = Operator(lambda v: 9 * v, lambda z: 3 * z, shape, like=jnp.zeros(2))
    >>> print(sigma.trace())
    18.0
    """

    matvec: Linear
    square_root: Linear
    normals: PyTree = eqx.field(static=True)
    like: PyTree

    def mv(self, vector: PyTree) -> PyTree:
        return self.matvec(vector)

    def normal_structure(self) -> PyTree:
        return self.normals

    def sqrt_mv(self, normals: PyTree) -> PyTree:
        return self.square_root(normals)

    def moment(self, form: Linear) -> PyTree:
        return Factored(self.factor()).moment(form)

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return trace_of(self.mv if matrix is None else lambda v: matrix(self.mv(v)), self.like)

    def factor(self) -> PyTree:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.normals)
        unit = trees.elements(zeros)
        return jax.vmap(lambda i: self.sqrt_mv(unit(i)), out_axes=-1)(jnp.arange(trees.count(zeros)))


class Sum(AbstractCovariance):
    """The covariance of a sum of independent parts.

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import ScaledIdentity, Sum
    >>> part = ScaledIdentity(jnp.array(1.0), jnp.zeros(3))
    >>> print(Sum((part, part)).trace())
    6.0
    """

    parts: tuple[AbstractCovariance, ...]

    def mv(self, vector: PyTree) -> PyTree:
        return self._total([part.mv(vector) for part in self.parts])

    def normal_structure(self) -> PyTree:
        return tuple(part.normal_structure() for part in self.parts)

    def sqrt_mv(self, normals: PyTree) -> PyTree:
        return self._total([part.sqrt_mv(z) for part, z in zip(self.parts, normals, strict=True)])

    def moment(self, form: Linear) -> PyTree:
        return self._total([part.moment(form) for part in self.parts])

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return self._total([part.trace(matrix) for part in self.parts])

    def factor(self) -> PyTree:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=-1), *[p.factor() for p in self.parts])

    def _total(self, terms: list[PyTree]) -> PyTree:
        total = terms[0]
        for term in terms[1:]:
            total = trees.add(total, term)
        return total
