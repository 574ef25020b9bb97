"""What noise is, to the theory: the covariance Sigma of one stochastic gradient, as an operator on vectors.

Every type answers the same questions and none of them ever forms a D x D matrix:

    mv(v)            Sigma v
    white()          the shapes of the standard normals z a draw consumes
    root(z)          Sigma^(1/2) z: any square root, root(z) ~ N(0, Sigma)
    gaussian(key)    a draw of N(0, Sigma)
    trace(A)         Tr[Sigma A], exactly
    moment(form)     E form(x), x ~ N(0, Sigma), for quadratic forms: many traces at once
    factor()         B with Sigma = B B', explicit
    split(project)   the tangent, normal and mixed parts under a projector

The theory dispatches on the concrete type, and is linear in `Sum`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow import spectral
from undertow.estimate import Estimate

__all__ = ["AbstractCovariance", "Linear", "Projected", "Scalar", "Split", "quadratic_form", "sum_over", "trace_of"]

Linear = Callable[[PyTree], PyTree]
Scalar = Float[Array, ""]


class Split(NamedTuple):
    """A covariance seen from a manifold: P Sigma P, Q Sigma Q (both covariances) and the operator Q Sigma P."""

    tangent: "Projected"
    normal: "Projected"
    mixed: Linear


class AbstractCovariance(eqx.Module):
    """The covariance of one stochastic gradient."""

    @abstractmethod
    def mv(self, vector: PyTree) -> PyTree:
        """Sigma v."""

    @abstractmethod
    def white(self) -> PyTree:
        """The shapes (`jax.ShapeDtypeStruct`s) of the standard normals that `root` takes."""

    @abstractmethod
    def root(self, white: PyTree) -> PyTree:
        """Sigma^(1/2) z for standard normals z shaped like `white()`."""

    @abstractmethod
    def moment(self, form: Linear) -> PyTree:
        """E form(x) for x ~ N(0, Sigma), exactly: `form` is quadratic, from vectors to any pytree of arrays."""

    @abstractmethod
    def trace(self, matrix: Linear | None = None) -> Scalar:
        """Tr[Sigma A] for a linear map A of vectors (None: the identity), exactly."""

    @abstractmethod
    def factor(self) -> PyTree:
        """B with Sigma = B B': like params with one extra trailing axis."""

    def gaussian(self, key: Key[Array, ""]) -> PyTree:
        """A draw of N(0, Sigma)."""
        return self.root(trees.standard_normal(key, self.white()))

    def split(self, project: Linear) -> Split:
        """The parts under an orthogonal projector P (a function of vectors), with Q = I - P."""

        def complement(vector: PyTree) -> PyTree:
            return trees.subtract(vector, project(vector))

        return Split(
            Projected(self, project),
            Projected(self, complement),
            lambda vector: complement(self.mv(project(vector))),
        )

    def trace_estimate(self, key: Key[Array, ""], matrix: Linear | None = None, probes: int = 128) -> Estimate:
        """Tr[Sigma A] by `probes` Gaussian draws x, as the mean of x'A x with its standard error."""
        probes = validate.positive_integer("trace_estimate", "probes", probes)
        product = (lambda x: x) if matrix is None else matrix
        return Estimate.of(spectral.quadratic_forms(self.gaussian, product, jax.random.split(key, probes)))


class Projected(AbstractCovariance):
    """M Sigma M for a symmetric linear map M of vectors: what is left of a noise after a projection.

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

    def white(self) -> PyTree:
        return self.covariance.white()

    def root(self, white: PyTree) -> PyTree:
        return self.project(self.covariance.root(white))

    def moment(self, form: Linear) -> PyTree:
        return self.covariance.moment(lambda v: form(self.project(v)))

    def trace(self, matrix: Linear | None = None) -> Scalar:
        inner = (lambda v: v) if matrix is None else matrix
        return self.covariance.trace(lambda v: self.project(inner(self.project(v))))

    def factor(self) -> PyTree:
        return jax.vmap(self.project, in_axes=-1, out_axes=-1)(self.covariance.factor())


def quadratic_form(matrix: Linear | None) -> Callable[[PyTree], Scalar]:
    """x'Ax as a function of x."""
    return lambda x: trees.dot(x, x if matrix is None else matrix(x))


def sum_over(function: Callable[[Array], PyTree], count: int) -> PyTree:
    """The sum of function(i) over range(count), one at a time."""
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.lax.map(function, jnp.arange(count)))


def trace_of(matrix: Linear, like: PyTree) -> Scalar:
    """Tr A, one unit vector at a time."""
    unit = trees.elements(like)
    return sum_over(lambda i: quadratic_form(matrix)(unit(i)), trees.count(like))
