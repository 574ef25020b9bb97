"""The covariance of a minibatch gradient: second moments of per-sample gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from undertow import _trees as trees
from undertow.covariance.base import AbstractCovariance, Linear, Scalar, quadratic_form, sum_over
from undertow.problem import AbstractSampled

__all__ = ["SampleCovariance"]


class SampleCovariance(AbstractCovariance):
    """The covariance of a sampled gradient: amount * (sum_i p_i g_i g_i' - sum_e p_e gbar_e gbar_e').

    g_i is the gradient of sample i and gbar_e the mean over group e. Without groups there is one group, and the
    bracket is the covariance of a sample's gradient. Products use forward and reverse differentiation of the losses:
    only `factor` stores per-sample gradients.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> problem = ut.Problem(lambda w, x: w * x, jnp.array([1.0, 3.0]))
    >>> print(ut.Minibatch(problem, batch_size=2).covariance(jnp.array(0.0)).trace())
    0.5
    """

    problem: AbstractSampled
    params: PyTree
    amount: Scalar | float
    groups: Int[Array, " samples"] | None = None
    group_count: int = eqx.field(static=True, default=1)

    def mv(self, vector: PyTree) -> PyTree:
        p = self.problem.probabilities
        s = self.problem.along(self.params, vector).astype(p.dtype)
        return self.problem.combine(self.params, self.amount * p * (s - self._group_mean(s)))

    def normal_structure(self) -> PyTree:
        dtype = jax.tree.leaves(self.params)[0].dtype
        return jax.ShapeDtypeStruct((self.problem.size,), dtype)

    def sqrt_mv(self, normals: PyTree) -> PyTree:
        # G' diag(sqrt p) (I - Pi) z, Pi the projector on the vectors sqrt(p) of each group
        half = jnp.sqrt(self.problem.probabilities)
        z = normals.astype(half.dtype)
        along = self._group_sum(half * z) / self._group_sum(half**2)
        return self.problem.combine(self.params, jnp.sqrt(self.amount) * half * (z - half * along))

    def moment(self, form: Linear) -> PyTree:
        second = self.problem.quadratic(self.params, form)
        return trees.scale(self.amount, trees.subtract(second, self.between(form)))

    def between(self, form: Linear) -> PyTree:
        """Return sum_e p_e form(gbar_e); without groups, form of the mean gradient."""
        if self.groups is None:
            return form(self.problem.gradient(self.params))
        p = self.problem.probabilities

        def one(e: Array) -> PyTree:
            inside = jnp.where(self.groups == e, p, 0)
            share = jnp.sum(inside)
            return trees.scale(share, form(self.problem.combine(self.params, inside / share)))

        return sum_over(one, self.group_count)

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return self.moment(quadratic_form(matrix))

    def trace_error(self, matrix: Linear | None = None) -> Scalar:
        """Return the standard error of `trace` for samples drawn from a population (one group, equal weights)."""
        if self.groups is not None or self.problem.weights is not None:
            raise ValueError("`trace_error`: only for equally weighted samples of one population.")
        return self.moment_error(quadratic_form(matrix))

    def moment_error(self, form: Linear) -> PyTree:
        """Return the standard error of `moment` in the same case."""
        mean = self.problem.gradient(self.params)
        centred = lambda g: form(trees.subtract(g, mean))
        first = self.problem.quadratic(self.params, centred)
        squares = lambda g: jax.tree.map(lambda x, m: (x - m) ** 2, centred(g), first)
        second = self.problem.quadratic(self.params, squares)
        return jax.tree.map(lambda x: self.amount * jnp.sqrt(x / (self.problem.size - 1)), second)

    def factor(self) -> PyTree:
        p = self.problem.probabilities
        gradients = self.problem.sample_gradients(self.params)

        def leaf(stacked: Array) -> Array:
            flat = stacked.reshape(stacked.shape[0], -1)
            centred = flat - jax.vmap(self._group_mean, in_axes=1, out_axes=1)(flat)
            weighted = jnp.sqrt(self.amount * p).astype(flat.dtype)[:, None] * centred
            return jnp.moveaxis(weighted.reshape(stacked.shape), 0, -1)

        return jax.tree.map(leaf, gradients)

    def _group_sum(self, values: Float[Array, " samples"]) -> Float[Array, " samples"]:
        if self.groups is None:
            return jnp.full_like(values, jnp.sum(values))
        return jax.ops.segment_sum(values, self.groups, self.group_count)[self.groups]

    def _group_mean(self, values: Float[Array, " samples"]) -> Float[Array, " samples"]:
        p = self.problem.probabilities.astype(values.dtype)
        return self._group_sum(p * values) / self._group_sum(p)
