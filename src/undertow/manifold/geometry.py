"""The manifold of minimisers at one point: its normal space and the curvatures of the loss across it.

A `Frame` holds an orthonormal basis V of the normal space (the range of the Hessian H) and the curvatures h > 0 along
it, H = V diag(h) V'. Where the residuals of a `Regression` are zero, both are computed from the n q rows of the
Jacobian J of its predictions (H = J'J/n), by a QR of J' and a small SVD, without a D x D matrix. Everywhere else they
are computed from the dense Hessian.
"""

from collections.abc import Callable
from typing import TypeGuard

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow import _validate as validate
from undertow.problem import AbstractProblem, Population, Regression

__all__ = [
    "DENSE_LIMIT",
    "Frame",
    "frame_at",
    "interpolates",
    "jacobian",
    "known_rank",
    "largest_flat",
    "off_manifold",
    "row_route",
    "threshold",
]

DENSE_LIMIT = 4000
"""The largest number of parameters for which a D x D Hessian is formed."""

FiniteStep = Float[Array, ""] | float
"""The step size in the covariance across the manifold; the float 0.0 is the limit of small steps."""


class Frame(eqx.Module):
    """The normal space of the manifold at a point, in flat coordinates (leaves in the order of `jax.tree.leaves`).

    Directions without curvature are tangent; their columns of `normal` are zero.

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
    lowest: Float[Array, ""]
    """The smallest eigenvalue of H; negative at a saddle."""
    least_squares: bool = eqx.field(static=True)
    """Whether the frame is computed from the rows of J: the residuals are zero and H = J'J/n."""

    @property
    def active(self) -> Array:
        """A mask of the columns that are normal directions."""
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
        """Return P v = dPhi v, the tangent part."""
        return vector - self.normal @ (self.normal.T @ vector)

    def pseudo_inverse(self, vector: Float[Array, "D ..."]) -> Float[Array, "D ..."]:
        """Return H^+ v."""
        along = self.normal.T @ vector
        scale = self.inverse_curvature.reshape(-1, *[1] * (along.ndim - 1))
        return self.normal @ (scale * along)

    def log_determinant(self) -> Float[Array, ""]:
        """Return ln |H|_+, the sum of the logarithms of the nonzero curvatures."""
        return jnp.sum(jnp.where(self.active, jnp.log(jnp.where(self.active, self.curvature, 1)), 0))

    def lyapunov(self, inner: Float[Array, "r r"], finite_step: FiniteStep = 0.0) -> Float[Array, "r r"]:
        """Return X with HX + XH - eta HXH = S on the normal space, S and X in the basis V; eta = 0 for small steps.

        This X times eta is the stationary covariance of SGD across the manifold.
        """
        h = self.curvature
        both = self.active[:, None] & self.active[None]
        sums = h[:, None] + h[None] - finite_step * h[:, None] * h[None]
        return jnp.where(both, inner / jnp.where(both, sums, 1), 0)


def threshold(dtype: np.dtype) -> float:
    """Return the size, relative to the largest, below which an eigenvalue of H or a singular value of J counts as zero.

    Near the manifold the curvatures along it are of the order of the distance, so the threshold is well above rounding.
    """
    return 1e-7 if dtype == jnp.float64 else 3e-4


def frame_at(
    problem: AbstractProblem,
    params: PyTree,
    *,
    rank: int | None = None,
    least_squares: bool | None = None,
    resolution: Float[Array, ""] | float = 0.0,
) -> Frame:
    """Return the frame at params: matrix-free where a `Regression` has zero residuals, dense elsewhere (DENSE_LIMIT).

    Directions of a curvature below `resolution`, or too small relative to the largest one (`threshold`), are tangent.
    With `rank` the normal space has at most that dimension instead. Near the manifold the dense Hessian also has small
    curvatures along the manifold, so a path along the manifold keeps the rank of its start. `least_squares` states
    whether the residuals are zero; with None they are computed. While tracing (inside `jax.jit`) the route cannot
    depend on the residuals: a `Regression` takes the matrix-free route, and the frame is NaN where its residuals are
    not zero.
    """
    if isinstance(problem, Population):
        raise TypeError("`Limit`: a `Population` has no manifold of exact minimisers; use `population.sample`.")
    if least_squares is None:
        if not all(validate.concrete(leaf) for leaf in jax.tree.leaves((params, problem))) and row_route(
            problem, params
        ):
            frame = _row_frame(problem, params, None, jnp.asarray(0.0))
            fits = _fits(problem, params)
            return jax.tree.map(lambda x: jnp.where(fits, x, jnp.nan), frame)
        least_squares = interpolates(problem, params)
    if least_squares and isinstance(problem, Regression):
        return _row_frame(problem, params, rank, jnp.asarray(resolution))
    size = trees.count(params)
    if size > DENSE_LIMIT:
        raise ValueError(
            f"`Limit`: the problem has {size} parameters and is not a `Regression` with equal weights, fewer "
            f"equations than parameters and zero residuals at this point; the dense route goes up to {DENSE_LIMIT} "
            "parameters: use a smaller model, or a point that fits all of the data."
        )
    return _dense_frame(problem, params, rank, jnp.asarray(resolution))


@eqx.filter_jit
def _dense_frame(problem: AbstractProblem, params: PyTree, rank: int | None, resolution: Float[Array, ""]) -> Frame:
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    hessian = jax.hessian(lambda x: problem.loss(unravel(x)))(flat)
    curvature, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    if rank is None:
        kept = curvature > jnp.maximum(threshold(flat.dtype) * jnp.max(jnp.abs(curvature)), resolution)
    else:
        kept = (jnp.arange(flat.size) >= flat.size - rank) & (curvature > 0)
    normal = jnp.where(kept[None], vectors, 0)
    return Frame(flat, normal, jnp.where(kept, curvature, 0), unravel, curvature[0], False)


def known_rank(frame: Frame) -> int:
    """Return the dimension of the normal space of a frame whose values are known."""
    return int(np.sum(np.asarray(frame.curvature) > 0))


def jacobian(problem: Regression, params: PyTree) -> Float[Array, "rows D"]:
    """Return J with one flat row for every sample and output, computed in chunks of samples."""
    rows = lambda x: jax.vmap(trees.ravel)(problem.rows(params, x))
    stacked = chunks.map_samples(rows, problem.inputs, problem.chunk(params))
    return stacked.reshape(-1, stacked.shape[-1])


def row_route(problem: AbstractProblem, params: PyTree) -> TypeGuard[Regression]:
    """Return whether the rows of J give the frame at zero residuals: equal weights, fewer rows than parameters."""
    return isinstance(problem, Regression) and problem.weights is None and problem.targets.size < trees.count(params)


def interpolates(problem: AbstractProblem, params: PyTree) -> bool:
    """Return whether a `Regression` with fewer equations than parameters fits all of its data at or close to params.

    The part of the residuals in the range of J can be removed by a small step of the params: it only measures the
    distance to the manifold. The part orthogonal to the range of J decides.
    """
    return row_route(problem, params) and bool(_fits(problem, params))


@eqx.filter_jit
def _fits(problem: Regression, params: PyTree) -> Array:
    rows = jacobian(problem, params)
    residuals = problem.residuals(params).ravel()
    left, singular, _ = jnp.linalg.svd(jnp.linalg.qr(rows.T, mode="r").T, full_matrices=False)
    eps = jnp.finfo(rows.dtype).eps
    reached = jnp.where((singular > 100 * eps * singular[0])[None], left, 0)
    rest = residuals - reached @ (reached.T @ residuals)
    size = 1 + jnp.linalg.norm(trees.ravel(params))
    scale = jnp.linalg.norm(problem.targets) + jnp.linalg.norm(rows) * size
    return jnp.linalg.norm(rest) <= jnp.sqrt(eps) * scale


@eqx.filter_jit
def _row_frame(problem: Regression, params: PyTree, rank: int | None, resolution: Float[Array, ""]) -> Frame:
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    basis, triangle = jnp.linalg.qr(jacobian(problem, params).T)
    left, singular, _ = jnp.linalg.svd(triangle)
    kept = singular > threshold(flat.dtype) * singular[0]
    if rank is None:
        kept = kept & (singular**2 / problem.size > resolution)
    else:
        kept = kept & (jnp.arange(singular.size) < rank)
    curvature = jnp.where(kept, singular**2 / problem.size, 0)
    normal = jnp.where(kept[None], basis @ left, 0)
    return Frame(flat, normal, curvature, unravel, jnp.zeros((), flat.dtype), True)


@eqx.filter_jit
def largest_flat(problem: AbstractProblem, frame: Frame) -> Float[Array, ""]:
    """Return the largest size of a curvature along the directions that the frame counts as tangent.

    It is at least the size of rounding errors, so that it can be compared with the curvatures across the manifold.
    """
    eps, scale = jnp.finfo(frame.point.dtype).eps, jnp.max(frame.curvature)
    if frame.least_squares and isinstance(problem, Regression):
        rows = frame.project(jacobian(problem, frame.unravel(frame.point)).T)
        largest = jnp.linalg.norm(rows, ord=2) ** 2 / problem.size
        return jnp.maximum(largest, (10 * eps) ** 2 * scale)
    hessian = jax.hessian(lambda x: problem.loss(frame.unravel(x)))(frame.point)
    return jnp.maximum(jnp.linalg.norm(frame.project(frame.project(hessian).T), ord=2), 10 * eps * scale)


def off_manifold(problem: AbstractProblem, frame: Frame) -> Float[Array, ""]:
    """Return |H^+ grad L|, the distance to the manifold to first order."""
    gradient = trees.ravel(problem.gradient(frame.unravel(frame.point)))
    return jnp.linalg.norm(frame.pseudo_inverse(gradient))
