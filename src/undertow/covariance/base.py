"""The covariance Sigma of one stochastic gradient, as an operator on vectors.

Every type has the same methods, and none of them forms a D x D matrix:

    mv(v)               Sigma v
    normal_structure()  the shapes of the standard normals z that one draw takes
    sqrt_mv(z)          Sigma^(1/2) z for any square root, so that sqrt_mv(z) ~ N(0, Sigma)
    gaussian(key)       a draw of N(0, Sigma)
    trace(A)            Tr[Sigma A], exactly
    moment(form)        E form(x), x ~ N(0, Sigma), for quadratic forms: many traces at once
    factor()            B with Sigma = B B', explicit
    split(project)      the tangent, normal and mixed parts under a projector

The theory dispatches on the concrete type and is linear in `Sum`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow import spectral
from undertow._calls import RenamedAttribute
from undertow._validate import KeyLike
from undertow.estimate import Estimate

__all__ = ["AbstractCovariance", "Linear", "Projected", "Scalar", "Split", "quadratic_form", "sum_over", "trace_of"]

Linear = Callable[[PyTree], PyTree]
Scalar = Float[Array, ""]


class Split(NamedTuple):
    """The parts of a covariance along and across a manifold: P Sigma P, Q Sigma Q and the operator Q Sigma P.

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import Factored
    >>> onto_first = lambda v: v * jnp.array([1.0, 0.0])
    >>> parts = Factored(jnp.array([[1.0], [2.0]])).split(onto_first)
    >>> print(parts.tangent.trace(), parts.normal.trace(), parts.mixed(jnp.array([1.0, 0.0])))
    1.0 4.0 [0. 2.]
    """

    tangent: "Projected"
    normal: "Projected"
    mixed: Linear


class AbstractCovariance(eqx.Module):
    """The covariance of one stochastic gradient.

    A new kind defines six methods; a factor B with Sigma = B B' gives the moments and the traces.

    >>> import jax, jax.numpy as jnp
    >>> from undertow.covariance import AbstractCovariance, Factored
    >>> class Diagonal(AbstractCovariance):  # for params that are one vector
    ...     variances: jax.Array
    ...     def mv(self, vector): return self.variances * vector
    ...     def normal_structure(self): return jax.ShapeDtypeStruct(self.variances.shape, self.variances.dtype)
    ...     def sqrt_mv(self, normals): return jnp.sqrt(self.variances) * normals
    ...     def factor(self): return jnp.diag(jnp.sqrt(self.variances))
    ...     def moment(self, form): return Factored(self.factor()).moment(form)
    ...     def trace(self, matrix=None): return Factored(self.factor()).trace(matrix)
    >>> sigma = Diagonal(jnp.array([1.0, 4.0]))
    >>> print(sigma.trace(), sigma.gaussian(0).shape)
    5.0 (2,)
    """

    white = RenamedAttribute("normal_structure")
    root = RenamedAttribute("sqrt_mv")

    @abstractmethod
    def mv(self, vector: PyTree) -> PyTree:
        """Return Sigma v."""

    @abstractmethod
    def normal_structure(self) -> PyTree:
        """Return the shapes (`jax.ShapeDtypeStruct`s) of the standard normals that `sqrt_mv` takes."""

    @abstractmethod
    def sqrt_mv(self, normals: PyTree) -> PyTree:
        """Return Sigma^(1/2) z for standard normals z shaped like `normal_structure()`."""

    @abstractmethod
    def moment(self, form: Linear) -> PyTree:
        """Return E form(x) for x ~ N(0, Sigma), exactly: `form` is quadratic, from vectors to any pytree of arrays."""

    @abstractmethod
    def trace(self, matrix: Linear | None = None) -> Scalar:
        """Return Tr[Sigma A] for a linear map A of vectors (None: the identity), exactly."""

    @abstractmethod
    def factor(self) -> PyTree:
        """Return B with Sigma = B B': like params with one extra trailing axis."""

    def gaussian(self, key: KeyLike) -> PyTree:
        """Return a draw of N(0, Sigma)."""
        key = validate.as_key("gaussian", key)
        return self.sqrt_mv(trees.standard_normal(key, self.normal_structure()))

    def split(self, project: Linear) -> Split:
        """Return the parts under an orthogonal projector P (a function of vectors), with Q = I - P."""

        def complement(vector: PyTree) -> PyTree:
            return trees.subtract(vector, project(vector))

        return Split(
            Projected(self, project),
            Projected(self, complement),
            lambda vector: complement(self.mv(project(vector))),
        )

    def trace_estimate(self, key: KeyLike, matrix: Linear | None = None, probes: int = 128) -> Estimate:
        """Return an estimate of Tr[Sigma A]: the mean of x'A x over `probes` Gaussian draws x."""
        probes = validate.positive_integer("trace_estimate", "probes", probes)
        product = (lambda x: x) if matrix is None else matrix
        return Estimate.of(
            spectral.quadratic_forms(
                self.gaussian, product, jax.random.split(validate.as_key("trace_estimate", key), probes)
            )
        )


class Projected(AbstractCovariance):
    """M Sigma M for a symmetric linear map M of vectors: the covariance of a projected noise.

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import Projected, ScaledIdentity
    >>> onto_first = lambda v: v * jnp.array([1.0, 0.0])
    >>> print(Projected(ScaledIdentity(jnp.array(4.0), jnp.zeros(2)), onto_first).trace())
    4.0
    """

    covariance: AbstractCovariance
    project: Linear

    def mv(self, vector: PyTree) -> PyTree:
        return self.project(self.covariance.mv(self.project(vector)))

    def normal_structure(self) -> PyTree:
        return self.covariance.normal_structure()

    def sqrt_mv(self, normals: PyTree) -> PyTree:
        return self.project(self.covariance.sqrt_mv(normals))

    def moment(self, form: Linear) -> PyTree:
        return self.covariance.moment(lambda v: form(self.project(v)))

    def trace(self, matrix: Linear | None = None) -> Scalar:
        inner = (lambda v: v) if matrix is None else matrix
        return self.covariance.trace(lambda v: self.project(inner(self.project(v))))

    def factor(self) -> PyTree:
        return jax.vmap(self.project, in_axes=-1, out_axes=-1)(self.covariance.factor())


def quadratic_form(matrix: Linear | None) -> Callable[[PyTree], Scalar]:
    """Return x'Ax as a function of x."""
    return lambda x: trees.dot(x, x if matrix is None else matrix(x))


def sum_over(function: Callable[[Array], PyTree], count: int) -> PyTree:
    """Return the sum of function(i) over range(count), computed one at a time."""
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.lax.map(function, jnp.arange(count)))


def trace_of(matrix: Linear, like: PyTree) -> Scalar:
    """Return Tr A, computed one unit vector at a time."""
    unit = trees.elements(like)
    return sum_over(lambda i: quadratic_form(matrix)(unit(i)), trees.count(like))
