"""The covariance of label noise: J'J of the predictions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.covariance.base import AbstractCovariance, Linear, Scalar, quadratic_form
from undertow.problem import Regression

__all__ = ["LabelCovariance"]


class LabelCovariance(AbstractCovariance):
    """The covariance of label noise: Sigma = amount * sum_i p_i J_i'J_i, J_i the Jacobian of prediction i.

    At a point of zero loss this is amount * H, H the Hessian of the loss.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.covariance import LabelCovariance
    >>> line = ut.Regression(lambda w, x: w * x, inputs=jnp.array([1.0, 2.0]), targets=jnp.array([1.0, 2.0]))
    >>> print(LabelCovariance(line, jnp.array(1.0), jnp.array(2.0)).trace())
    5.0
    """

    problem: Regression
    params: PyTree
    amount: Scalar

    def mv(self, vector: PyTree) -> PyTree:
        _, pushed = jax.jvp(self.problem.predictions, (self.params,), (vector,))
        return self._pull(self._weighted(self.amount * self.problem.probabilities, pushed))

    def normal_structure(self) -> PyTree:
        output = jax.eval_shape(self.problem.predictions, self.params)
        return jax.ShapeDtypeStruct(output.shape, output.dtype)

    def sqrt_mv(self, normals: PyTree) -> PyTree:
        return self._pull(self._weighted(jnp.sqrt(self.amount * self.problem.probabilities), normals))

    def moment(self, form: Linear) -> PyTree:
        p = (self.amount * self.problem.probabilities).astype(self.normal_structure().dtype)

        def one(rows: PyTree) -> PyTree:
            weights, inputs = rows

            def quadratic(x: PyTree) -> PyTree:
                values = jax.vmap(form)(self.problem.rows(self.params, x))
                return jax.tree.map(lambda v: jnp.sum(v, axis=0), values)

            return trees.weigh(weights, jax.vmap(quadratic)(inputs))

        return chunks.sum_samples(one, (p, self.problem.inputs), self._chunk())

    def trace(self, matrix: Linear | None = None) -> Scalar:
        return self.moment(quadratic_form(matrix))

    def factor(self) -> PyTree:
        p = jnp.sqrt(self.amount * self.problem.probabilities)
        rows = chunks.map_samples(lambda x: self.problem.rows(self.params, x), self.problem.inputs, self._chunk())

        def leaf(stacked: Array) -> Array:  # (n, q, ...) -> (..., n q)
            weighted = stacked * p.astype(stacked.dtype).reshape(-1, *[1] * (stacked.ndim - 1))
            return jnp.moveaxis(weighted.reshape(-1, *stacked.shape[2:]), 0, -1)

        return jax.tree.map(leaf, rows)

    def _pull(self, cotangent: Array) -> PyTree:
        """Return J'c, in chunks of samples."""

        def block(rows: PyTree) -> PyTree:
            inputs, weights = rows

            def weighted(p: PyTree) -> Scalar:
                return jnp.vdot(weights, jax.vmap(lambda x: self.problem.predict(p, x))(inputs))

            return jax.grad(weighted)(self.params)

        return chunks.sum_samples(block, (self.problem.inputs, cotangent), self._chunk())

    def _weighted(self, weights: Array, outputs: Array) -> Array:
        return weights.astype(outputs.dtype).reshape(-1, *[1] * (outputs.ndim - 1)) * outputs

    def _chunk(self) -> int:
        outputs = max(1, self.problem.targets[0].size)
        return max(1, self.problem.chunk(self.params) // outputs)
