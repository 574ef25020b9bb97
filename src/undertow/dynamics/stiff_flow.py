"""The end of an ill-conditioned gradient flow, by an L-stable method with the curvatures of the loss."""

from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from undertow import _trees as trees
from undertow._stiff import Linearisation, RosenbrockW, along_eigenvectors
from undertow._validate import Number
from undertow.manifold.fluctuations import directions, image_route
from undertow.manifold.geometry import Frame
from undertow.problem import AbstractProblem, Regression

__all__ = ["FlowEnd", "stiff_end", "stiff_route"]

MOST_EQUATIONS = 2000
MOST_PARAMETERS = 1000
"""The largest number of parameters without the structure of least squares: every step decomposes a D x D Hessian."""

NEWTON_STEPS = 4
MOST_STEPS = 20_000

STEP_ERROR = (1e-7, 1e-4)
"""The relative and absolute error per step, in double and in single precision."""


class FlowEnd(NamedTuple):
    """The end of a flow."""

    params: PyTree
    distance: Float[Array, ""]
    """The length of the Newton step along the directions that have not arrived."""
    resolution: Float[Array, ""]
    """The largest curvature along which the flow has not arrived; zero for none."""


def stiff_route(problem: AbstractProblem, params: PyTree) -> bool:
    """Return whether the curvatures can be computed at every step."""
    size = trees.count(params)
    if image_route(problem, size) and isinstance(problem, Regression):
        return problem.targets.size <= MOST_EQUATIONS
    return size <= MOST_PARAMETERS


@eqx.filter_jit
def stiff_end(
    problem: AbstractProblem, params: PyTree, tolerance: Float[Array, ""], longest: float, max_steps: int
) -> FlowEnd:
    """Follow gradient flow until it is linear along all directions with a gradient above the tolerance.

    It is linear along a direction where the Newton step is at most `longest` times 1 + |params|, divided by the root of
    the number of directions. Newton's method then takes the flow to its end along these directions.
    """
    start, unravel = jax.flatten_util.ravel_pytree(params)
    gradient = lambda x: trees.ravel(problem.gradient(unravel(x)))
    eps = jnp.finfo(start.dtype).eps

    def linearise(point: Array) -> Linearisation:
        frame = directions(problem, point, unravel)
        return along_eigenvectors(frame.normal, frame.curvature)

    def newton(point: Array) -> tuple[Frame, Array, Array]:
        """Return the frame, the Newton step along each direction, and whether the flow is linear along it."""
        frame = directions(problem, point, unravel)
        h = frame.curvature
        clear = h > 100 * eps * jnp.max(jnp.abs(h))  # a smaller curvature cannot be distinguished from zero
        steps = jnp.where(clear, frame.normal.T @ gradient(point) / jnp.where(clear, h, 1), 0)
        near = jnp.abs(steps) <= longest * (1 + jnp.linalg.norm(point)) / h.size**0.5
        return frame, steps, near

    def arrived(t: Number, y: Array, args: PyTree, **_: object) -> Bool[Array, ""]:
        frame, steps, near = newton(y)
        return jnp.linalg.norm(jnp.where(near, 0, steps * frame.curvature)) <= tolerance

    sharpest = jnp.max(jnp.abs(directions(problem, start, unravel).curvature))
    error = STEP_ERROR[0] if eps < 1e-10 else STEP_ERROR[1]
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -gradient(y)),
        RosenbrockW(linearise),
        t0=0.0,
        t1=jnp.inf,
        dt0=0.1 / jnp.maximum(sharpest, eps),
        y0=start,
        stepsize_controller=diffrax.PIDController(rtol=error, atol=error),
        event=diffrax.Event(arrived),
        adjoint=diffrax.ForwardMode(),
        max_steps=min(max_steps, MOST_STEPS),
        throw=False,
    )
    near = newton(solution.ys[-1])[2]

    def refine(_: int | Array, point: Array) -> Array:
        frame, steps = newton(point)[:2]
        return point - frame.normal @ jnp.where(near, steps, 0)

    end = jax.lax.fori_loop(0, NEWTON_STEPS, refine, solution.ys[-1])
    frame, steps, _ = newton(end)
    left = jnp.where(near, 0, steps)
    resolution = jnp.max(jnp.where(left != 0, frame.curvature, 0))
    return FlowEnd(unravel(end), jnp.linalg.norm(left), resolution)
