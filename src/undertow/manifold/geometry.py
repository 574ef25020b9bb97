"""The manifold of minimisers at one point: its normal space, the curvatures there, and what follows from them.

A `Frame` holds an orthonormal basis V of the normal space (the range of the Hessian H) and the curvatures h > 0 along
it, H = V diag(h) V'. For a `Regression` at zero loss both come from the n q rows of the Jacobian J of its predictions
(H = J'J/n), by a QR of J' and a small SVD: nothing of size D x D. For any other small problem they come from the dense
Hessian.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import chunks, trees, validate
from undertow.problem import AbstractProblem, Population, Regression

__all__ = [
    "DENSE_LIMIT",
    "Frame",
    "frame_at",
    "jacobian",
    "off_manifold",
    "refuse_distance",
    "refuse_off_manifold",
    "refuse_square",
]

DENSE_LIMIT = 4000
"""The largest number of parameters for which a D x D Hessian is formed."""


class Frame(eqx.Module):
    """The normal space of the manifold at a point, in flat coordinates (leaves in the order of `jax.tree.leaves`).

    Directions whose curvature is below `threshold` times the largest are tangent; their columns of `normal` are zero.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.manifold.geometry import frame_at
    >>> circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    >>> frame = frame_at(circle, jnp.array([1.0, 0.0]))
    >>> print(frame.project(jnp.array([3.0, 4.0])).round(5), int(frame.rank))
    [0. 4.] 1
    """

    point: Float[Array, " D"]
    normal: Float[Array, "D r"]
    curvature: Float[Array, " r"]
    unravel: Callable[[Array], PyTree] = eqx.field(static=True)

    @property
    def active(self) -> Array:
        """Which of the columns are normal directions."""
        return self.curvature > 0

    @property
    def rank(self) -> Array:
        """The dimension of the normal space."""
        return jnp.sum(self.active)

    @property
    def inverse_curvature(self) -> Float[Array, " r"]:
        """1/h on the normal space, 0 elsewhere."""
        return jnp.where(self.active, 1 / jnp.where(self.active, self.curvature, 1), 0)

    def project(self, vector: Float[Array, "D ..."]) -> Float[Array, "D ..."]:
        """P v = dPhi v, the tangent part."""
        return vector - self.normal @ (self.normal.T @ vector)

    def pseudo_inverse(self, vector: Float[Array, "D ..."]) -> Float[Array, "D ..."]:
        """H^+ v."""
        along = self.normal.T @ vector
        scale = self.inverse_curvature.reshape(-1, *[1] * (along.ndim - 1))
        return self.normal @ (scale * along)

    def log_determinant(self) -> Float[Array, ""]:
        """ln |H|_+, the sum of the logarithms of the nonzero curvatures."""
        return jnp.sum(jnp.where(self.active, jnp.log(jnp.where(self.active, self.curvature, 1)), 0))

    def lyapunov(self, inner: Float[Array, "r r"], finite_step: Float[Array, ""] | float = 0.0) -> Float[Array, "r r"]:
        """X with HX + XH - eta HXH = S on the normal space, S and X in the basis V; eta = 0: small steps.

        This X times eta is the stationary covariance of SGD across the manifold.
        """
        h = self.curvature
        both = self.active[:, None] & self.active[None]
        sums = h[:, None] + h[None] - finite_step * h[:, None] * h[None]
        return jnp.where(both, inner / jnp.where(both, sums, 1), 0)


def frame_at(
    problem: AbstractProblem, params: PyTree, *, threshold: float | None = None, rank: int | None = None
) -> Frame:
    """The frame at params, matrix-free for a plain `Regression`, dense for any other problem of up to DENSE_LIMIT.

    With `rank` the normal space has just that dimension. A little off the manifold the dense Hessian has small
    curvatures along it too, so whoever moves along it keeps the rank of the start.
    """
    if isinstance(problem, Population):
        raise TypeError("`Limit`: a `Population` has no manifold of exact minimisers; use `population.sample`.")
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    if threshold is None:
        threshold = 1e-7 if flat.dtype == jnp.float64 else 3e-4
    if isinstance(problem, Regression) and problem.weights is None:
        return _row_frame(problem, params, flat, unravel, threshold)
    if flat.size > DENSE_LIMIT:
        raise ValueError(
            f"`Limit`: the problem has {flat.size} parameters and is no plain `Regression`; the dense route goes up to "
            f"{DENSE_LIMIT}: state it as `Regression(predict, inputs, targets)`."
        )
    hessian = jax.hessian(lambda x: problem.loss(unravel(x)))(flat)
    curvature, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    largest = jnp.max(jnp.abs(curvature))
    if rank is None:
        kept = curvature > threshold * largest
    else:
        kept = (jnp.arange(flat.size) >= flat.size - rank) & (curvature > 0)
    return Frame(flat, jnp.where(kept[None], vectors, 0), jnp.where(kept, curvature, 0), unravel)


def jacobian(problem: Regression, params: PyTree) -> Float[Array, "rows D"]:
    """J: one flat row for every sample and output, in chunks of samples."""

    rows = lambda x: jax.vmap(trees.ravel)(problem.rows(params, x))
    stacked = chunks.map_samples(rows, problem.inputs, problem.chunk(params))
    return stacked.reshape(-1, stacked.shape[-1])


def _row_frame(problem: Regression, params: PyTree, flat: Array, unravel: Any, threshold: float) -> Frame:
    refuse_square(problem, params)
    basis, triangle = jnp.linalg.qr(jacobian(problem, params).T)
    left, singular, _ = jnp.linalg.svd(triangle)
    curvature = singular**2 / problem.size
    kept = curvature > threshold * curvature[0]
    return Frame(flat, jnp.where(kept[None], basis @ left, 0), jnp.where(kept, curvature, 0), unravel)


def off_manifold(problem: AbstractProblem, frame: Frame) -> Float[Array, ""]:
    """|H^+ grad L|: how far away the manifold is, to first order."""
    gradient = trees.ravel(problem.gradient(frame.unravel(frame.point)))
    return jnp.linalg.norm(frame.pseudo_inverse(gradient))


@eqx.filter_jit
def _distances(problem: AbstractProblem, frame: Frame) -> tuple[Array, Array, Array, Array]:
    """|H^+ grad L|, |P grad L|, 1 + |x| and the largest curvature."""
    gradient = trees.ravel(problem.gradient(frame.unravel(frame.point)))
    size = 1 + jnp.linalg.norm(frame.point)
    along = jnp.linalg.norm(frame.project(gradient))
    return jnp.linalg.norm(frame.pseudo_inverse(gradient)), along, size, jnp.max(frame.curvature)


def refuse_off_manifold(function: str, problem: AbstractProblem, frame: Frame) -> None:
    """An error that says how far off a point is, where that can be looked at."""
    if not validate.concrete(frame.point):
        return
    far, left, scale, largest = (float(x) for x in _distances(problem, frame))
    # off the manifold the gradient may also point along it
    along = left / max(largest, 1e-30)
    refuse_distance(function, max(far, along), scale - 1)


def refuse_distance(function: str, far: Any, size: Any) -> None:
    """An error where a point of the given size is too far off the manifold; NaN is too far."""
    if not validate.concrete(far):
        return
    double = not hasattr(far, "dtype") or far.dtype == jnp.float64
    tolerance = 1e-4 if double else 1e-2
    if not math.isfinite(float(far)):
        raise ValueError(
            f"`{function}`: the Hessian loses rank at this point (rows of the Jacobian are linearly dependent, or the "
            "loss is not finite): there is no smooth manifold of minimisers through it; start from another point."
        )
    if not float(far) <= tolerance * (1 + float(size)):
        raise ValueError(
            f"`{function}`: the point is about {float(far):.2g} away from the manifold of minimisers; "
            "go there first with `ut.settle(problem, params)`."
        )


def refuse_square(problem: Regression, params: PyTree) -> None:
    """An error where there are as many equations as parameters."""
    rows, size = problem.targets.size, trees.count(params)
    if rows >= size:
        raise ValueError(
            f"`Limit`: {rows} equations (samples times outputs) for {size} parameters leave no manifold of "
            "minimisers to move on; use fewer samples or a larger model."
        )
