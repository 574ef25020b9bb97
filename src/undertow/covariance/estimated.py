"""A covariance that is estimated from draws, with the standard error of its traces."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow.covariance.base import AbstractCovariance, Linear, Scalar, quadratic_form
from undertow.covariance.factored import Factored

__all__ = ["EstimatedCovariance"]


class EstimatedCovariance(AbstractCovariance):
    """The covariance of n independent draws g_i: Sigma = 1/(n - 1) sum_i (g_i - gbar)(g_i - gbar)', of rank n - 1.

    Its expected value is the covariance of one draw. The relative standard error of v'Sigma v is sqrt(2/(n - 1)) for
    Gaussian draws, and larger for draws with heavier tails: `moment_error` and `trace_error` measure it.

    >>> import jax.numpy as jnp
    >>> from undertow.covariance import EstimatedCovariance
    >>> sigma = EstimatedCovariance.of(jnp.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0], [6.0, 1.0], [8.0, 1.0]]))
    >>> print(sigma.mv(jnp.array([1.0, 0.0])), sigma.trace(), sigma.samples)
    [10.  0.] 10.0 5
    """

    factored: Factored
    samples: int = eqx.field(static=True)

    @staticmethod
    def of(draws: PyTree) -> "EstimatedCovariance":
        """Return the covariance of two or more draws, stacked on a leading axis."""
        samples = jax.tree.leaves(draws)[0].shape[0]
        centred = trees.centre(draws, jnp.full((samples,), 1 / samples))
        columns = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1) / jnp.sqrt(samples - 1).astype(x.dtype), centred)
        return EstimatedCovariance(Factored(columns), samples)

    def mv(self, vector: PyTree) -> PyTree:
        return self.factored.mv(vector)

    def normal_structure(self) -> PyTree:
        return self.factored.normal_structure()

    def sqrt_mv(self, normals: PyTree) -> PyTree:
        return self.factored.sqrt_mv(normals)

    def moment(self, form: Linear) -> PyTree:
        return self.factored.moment(form)

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return self.factored.trace(matrix)

    def factor(self) -> PyTree:
        return self.factored.factor()

    def terms(self, form: Linear) -> PyTree:
        """Return the terms of `moment`, one for each draw, on a leading axis: their sum is the moment."""
        return jax.vmap(form, in_axes=-1)(self.factored.columns)

    def moment_error(self, form: Linear) -> PyTree:
        """Return the standard error of `moment`: sqrt(n) times the standard deviation of its n terms."""
        root = lambda x: jnp.sqrt(self.samples).astype(x.dtype)
        return jax.tree.map(lambda x: root(x) * jnp.std(x, axis=0, ddof=1), self.terms(form))

    def trace_error(self, matrix: Linear | None = None) -> Scalar:
        """Return the standard error of `trace`."""
        return self.moment_error(quadratic_form(matrix))
