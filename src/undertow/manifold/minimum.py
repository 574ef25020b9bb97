"""Check that a point lies on a smooth manifold of minimisers, and compute its frame there.

At such a point the gradient vanishes, the Hessian H has no negative eigenvalue, and its kernel is the tangent space.
The loss is then constant along the curve of critical points that leaves in a direction q of the kernel. Up to the
fourth order this means, with w = d3L[q q'],

    P w = 0    and    d4L[q q q q] = 3 w' H^+ w

The condition fails where two manifolds cross, where the rank of H is lower than at neighbouring points, and at a
minimum whose fourth derivative in a direction without curvature is not zero.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow.manifold.geometry import Frame, frame_at, interpolates, known_rank, largest_flat, threshold
from undertow.problem import AbstractProblem, Regression

__all__ = ["check_distance", "farthest", "frame_of_minimum", "third"]

NEWTON_STEPS = 4
FLAT_RISE = 100.0
"""The largest third and fourth derivatives along a direction that counts as flat, relative to its curvature."""

LEAST_GAP = 10.0
"""The least ratio of the curvatures across the manifold to those along it."""

BEND = 0.05
"""The largest relative violation of the fourth-order condition for which the kernel of H counts as a tangent space."""


def frame_of_minimum(function: str, problem: AbstractProblem, params: PyTree, resolution: float | None = None) -> Frame:
    """Return the frame at params, or raise an error that says why params are on no smooth manifold of minimisers.

    Directions of a curvature below `resolution` are tangent; None leaves the choice to the precision of the params.
    While tracing, values are not known: the frame is the one of `frame_at`, and only the residuals are checked.
    """
    cut = 0.0 if resolution is None else resolution
    if not all(validate.concrete(leaf) for leaf in jax.tree.leaves((params, problem))):
        return frame_at(problem, params, resolution=cut)
    frame = _frame(problem, params, interpolates(problem, params), cut)
    if not frame.least_squares:
        frame = _closer(function, problem, frame, cut)
    dtype = frame.point.dtype
    far, along, size, largest, smallest, lowest = (float(x) for x in _measures(problem, frame))
    scale = max(largest, -lowest)
    gradient = float(_gradient_norm(problem, frame))
    settled = frame.least_squares or gradient <= farthest(dtype) * (1 + size) * scale
    if largest > 0 and settled and lowest >= -threshold(dtype) * scale:
        # along the steepest directions this is a minimum: a long distance then comes from the smallest curvatures
        _check_gap(function, problem, frame)
    check_distance(function, far + along / max(scale, 1e-300), size, dtype)
    small = max(threshold(dtype), 10 * far / (1 + size)) * scale
    if lowest < -small:
        kind = "saddle" if largest > 0 else "maximum"
        raise ValueError(
            f"`{function}`: the point is a {kind}, not a minimum: the lowest eigenvalue of the Hessian is {lowest:.3g} "
            f"(the largest {largest:.3g}); perturb the params slightly and descend with "
            "`ut.settle(problem, params).params`."
        )
    if not largest > 0:
        raise ValueError(
            f"`{function}`: the Hessian is zero at this point, so it has no directions across a manifold of minimisers "
            "(two manifolds cross here, or the loss does not depend on the params to the second order); start from "
            "another point."
        )
    if smallest < small and not frame.least_squares:
        raise ValueError(
            f"`{function}`: the smallest curvatures cannot be distinguished from zero at {far:.2g} from the "
            "manifold of minimisers; go closer with `ut.settle(problem, params, tolerance=...).params` in double "
            "precision."
        )
    rank = known_rank(frame)
    _check_gap(function, problem, frame)
    if rank == frame.point.size:
        _raise_isolated(function, problem, rank)
    full = isinstance(problem, Regression) and frame.least_squares and rank == problem.targets.size
    if not full and bool(_bends(problem, frame)):  # independent rows of J always give a smooth manifold
        raise ValueError(
            f"`{function}`: there is no smooth manifold of minimisers through this point: the Hessian loses rank here "
            f"(rank {rank}), and along its kernel the loss does not stay constant. Two manifolds cross, or the minimum "
            "is flat to the second order only; start from another point."
        )
    return frame


def _check_gap(function: str, problem: AbstractProblem, frame: Frame) -> None:
    """Raise where the curvatures across the manifold and those counted as flat are not well separated."""
    curvature = np.asarray(frame.curvature)
    across = float(np.min(curvature, where=curvature > 0, initial=np.inf))
    flat = float(largest_flat(problem, frame))
    if across < LEAST_GAP * flat:
        raise ValueError(
            f"`{function}`: the rank of the Hessian is not sharp: its smallest curvature across the manifold would be "
            f"{across:.2g} (rank {known_rank(frame)}), and its largest one along it {flat:.2g}, without a gap between "
            "them. If there is a gap elsewhere, choose it by `Limit(noise, resolution=...)`, a curvature below which "
            "directions count as flat. Without a gap use `ut.average(noise, params, step_size=..., time=...)`, which "
            "needs no rank."
        )


@eqx.filter_jit
def _gradient_norm(problem: AbstractProblem, frame: Frame) -> Float[Array, ""]:
    return jnp.linalg.norm(trees.ravel(problem.gradient(frame.unravel(frame.point))))


def farthest(dtype: np.dtype) -> float:
    """Return the largest distance of a point to the manifold, relative to 1 + |params|."""
    return 1e-4 if dtype == jnp.float64 else 1e-2


def check_distance(function: str, far: float | Array, size: float | Array, dtype: np.dtype) -> None:
    """Raise where a point of the given size is too far from the manifold, or where the distance is not finite."""
    if not math.isfinite(float(far)):
        raise ValueError(f"`{function}`: the loss, or one of its derivatives, is not finite at this point.")
    if not float(far) <= farthest(dtype) * (1 + float(size)):
        raise ValueError(
            f"`{function}`: the point is about {float(far):.2g} away from the manifold of minimisers; "
            "go there first with `ut.settle(problem, params).params`. If the problem is ill-conditioned, choose a "
            "larger `resolution=` of `Limit`, or use `ut.average`, which starts from any point."
        )


def third(problem: AbstractProblem, frame: Frame, u: Array, v: Array) -> Float[Array, " D"]:
    """Return d3L[u v'] = d/de d/dt grad L(x + e u + t v)."""
    gradient = lambda x: trees.ravel(problem.gradient(frame.unravel(x)))
    along_u = lambda x: jax.jvp(gradient, (x,), (u,))[1]
    return jax.jvp(along_u, (frame.point,), (v,))[1]


@eqx.filter_jit
def _frame(problem: AbstractProblem, params: PyTree, least_squares: bool, resolution: float) -> Frame:
    return frame_at(problem, params, least_squares=least_squares, resolution=resolution)


@eqx.filter_jit
def _measures(problem: AbstractProblem, frame: Frame) -> tuple[Array, ...]:
    """Return |H^+ grad L|, |P grad L| (not zero for a point off the manifold), |x|, and the extreme curvatures."""
    gradient = trees.ravel(problem.gradient(frame.unravel(frame.point)))
    along = jnp.linalg.norm(frame.project(gradient))
    smallest = jnp.min(jnp.where(frame.active, frame.curvature, jnp.inf))
    far, size = jnp.linalg.norm(frame.pseudo_inverse(gradient)), jnp.linalg.norm(frame.point)
    return far, along, size, jnp.max(frame.curvature), smallest, frame.lowest


def _closer(function: str, problem: AbstractProblem, frame: Frame, resolution: float) -> Frame:
    """Return the frame after Newton steps from a point near the manifold.

    Off the manifold the curvatures along it are of the order of the distance, and would count as curvatures across it.
    """
    start, size = frame.point, 1 + float(np.linalg.norm(np.asarray(frame.point)))
    for _ in range(NEWTON_STEPS):
        if not float(_measures(problem, frame)[0]) > threshold(start.dtype) / 10 * size:
            break
        moved = _newton(problem, frame)
        check_distance(function, float(np.linalg.norm(np.asarray(moved) - start)), size - 1, start.dtype)
        frame = _frame(problem, frame.unravel(moved), False, resolution)
    return frame


@eqx.filter_jit
def _newton(problem: AbstractProblem, frame: Frame) -> Float[Array, " D"]:
    """Return x - h/(h^2 + mu^2) grad L in every normal direction: curvatures well below mu do not move the point."""
    gradient = frame.normal.T @ trees.ravel(problem.gradient(frame.unravel(frame.point)))
    h = frame.curvature
    cut = farthest(h.dtype) * jnp.max(h)
    return frame.point - frame.normal @ (gradient * h / jnp.where(h > 0, h**2 + cut**2, 1))


@eqx.filter_jit
def _bends(problem: AbstractProblem, frame: Frame) -> Array:
    """Return whether the loss changes in the third or fourth order along a random direction in the kernel of H."""
    drawn = frame.project(jax.random.normal(jax.random.key(0), frame.point.shape, frame.point.dtype))
    q = drawn / jnp.linalg.norm(drawn)
    gradient = lambda x: trees.ravel(problem.gradient(frame.unravel(x)))
    derivative = lambda f: lambda x: jax.jvp(f, (x,), (q,))[1]
    w, change = jax.jvp(derivative(derivative(gradient)), (frame.point,), (q,))
    fourth = jnp.vdot(q, change)
    curved = 3 * jnp.vdot(w, frame.pseudo_inverse(w))
    size = jnp.linalg.norm(frame.point)
    unit = jnp.max(frame.curvature) / (1 + size)
    # directions that count as flat may have a small curvature, and the loss rises along them as much as that says
    floor = jnp.sqrt(jnp.finfo(w.dtype).eps) * unit + FLAT_RISE * largest_flat(problem, frame) / (1 + size)
    leaves = jnp.linalg.norm(frame.project(w)) > BEND * jnp.linalg.norm(w) + floor
    rises = jnp.abs(fourth - curved) > BEND * (jnp.abs(fourth) + curved) + floor / (1 + jnp.linalg.norm(frame.point))
    return leaves | rises


def _raise_isolated(function: str, problem: AbstractProblem, size: int) -> None:
    if isinstance(problem, Regression):
        reason = f"{problem.targets.size} equations (samples times outputs) for {size} parameters"
    else:
        reason = f"the Hessian has full rank, {size}: the minimum is isolated, and its curvatures"
    raise ValueError(
        f"`{function}`: {reason} leave no manifold of minimisers to move on; use fewer samples or a larger model."
    )
