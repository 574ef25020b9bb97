"""Drift for label noise on a least-squares problem, by one small Cholesky factorisation.

Where the residuals are zero Sigma = c H with H = J'J/n, and the limit is the flow -(c/4) P grad tr H,
tr H = (1/n) |J|^2, P v = v - J'(JJ')^-1 J v. Only n q rows of length D are stored. If the rows of J are independent and
the gradient J'r/n vanishes, then the residuals r vanish, so the gradient is checked.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.covariance import AbstractCovariance, LabelCovariance, SampleCovariance, Sum
from undertow.manifold.geometry import jacobian
from undertow.problem import AbstractProblem, Regression

__all__ = ["label_amount", "label_drift", "label_return", "trace_gradient"]

Unravel = Callable[[Array], PyTree]


def label_amount(covariance: AbstractCovariance, problem: AbstractProblem) -> Array | None:
    """Return c if the noise is c H where the residuals of an equally weighted regression are zero, None otherwise."""
    if not isinstance(problem, Regression) or problem.weights is not None:
        return None
    parts = covariance.parts if isinstance(covariance, Sum) else (covariance,)
    labels = [part for part in parts if isinstance(part, LabelCovariance)]
    others = [part for part in parts if not isinstance(part, LabelCovariance | SampleCovariance)]
    if len(labels) != 1 or others or labels[0].problem.weights is not None:  # with weights it is no multiple of H
        return None
    return labels[0].amount


def trace_gradient(
    problem: Regression, point: Float[Array, " D"], unravel: Unravel, rows: Float[Array, "rows D"]
) -> Float[Array, " D"]:
    """Return grad tr(H A) = (2/n) sum_i f_i'' A J_i' for given rows J A, in bounded memory; A = I for grad tr H.

    It neglects the other terms of H than J'J/n, which are zero where the residuals are.
    """
    shape = problem.targets.shape[1:]
    outputs = max(1, problem.targets[0].size)
    basis = jnp.eye(outputs, dtype=point.dtype).reshape(outputs, *shape)

    def pull(x: Array, z: PyTree, c: Array) -> Array:
        return trees.ravel(jax.vjp(lambda p: problem.predict(p, z), unravel(x))[1](c)[0])

    def one(z: PyTree, own: Array) -> Array:
        along = lambda c, row: jax.jvp(lambda x: pull(x, z, c), (point,), (row,))[1]
        return jnp.sum(jax.vmap(along)(basis, own), axis=0)

    block = lambda samples: jnp.sum(jax.vmap(one)(*samples), axis=0)
    samples = (problem.inputs, rows.reshape(problem.size, outputs, -1))
    each = 4 * outputs * point.size * point.dtype.itemsize
    return 2 * chunks.sum_samples(block, samples, chunks.chunk_length(each)) / problem.size


def label_drift(
    problem: Regression, point: Float[Array, " D"], unravel: Unravel, amount: Array
) -> tuple[Float[Array, " D"], Float[Array, ""]]:
    """Return -(c/4) P grad tr H, and |J^+ r|, the distance to the manifold: NaN where the rows of J are dependent."""
    rows, solve, lost = _rows(problem, point, unravel)
    gradient = trace_gradient(problem, point, unravel, rows)
    project = lambda v: v - rows.T @ solve(rows @ v)
    far = jnp.linalg.norm(rows.T @ solve(problem.residuals(unravel(point)).ravel()))
    # the second projection removes the rounding errors of the first
    return -amount / 4 * project(project(gradient)), jnp.where(lost, jnp.nan, far)


def label_return(problem: Regression, point: Float[Array, " D"], unravel: Unravel) -> Float[Array, " D"]:
    """Return x - J^+ r, a Gauss-Newton step back to the manifold."""
    rows, solve, _ = _rows(problem, point, unravel)
    return point - rows.T @ solve(problem.residuals(unravel(point)).ravel())


def _rows(problem: Regression, point: Array, unravel: Unravel) -> tuple[Array, Callable[[Array], Array], Array]:
    """Return J, a function that solves (JJ') c = b, and whether J has lost rank."""
    rows = jacobian(problem, unravel(point))
    factor = jax.scipy.linalg.cho_factor(rows @ rows.T)
    pivots = jnp.abs(jnp.diag(factor[0]))
    lost = ~(jnp.min(pivots) > 10 * jnp.sqrt(jnp.finfo(point.dtype).eps) * jnp.max(pivots))
    return rows, lambda b: jax.scipy.linalg.cho_solve(factor, b), lost
