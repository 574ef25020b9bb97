"""The averaged flow: the mean motion of SGD at a finite step, from any start.

    d theta/dt = (1 + (eta/2) H) F,     F = -grad L - (eta/2) d3L[X]

F is the mean step of SGD over eta; the factor with the Hessian H makes the flow pass through the points of the discrete
steps, to the next order in eta. X is the covariance of the fluctuations divided by eta (`fluctuations`), and
d3L[X] = sum_ij X_ij d_i d_j grad L. For label noise of the amount c and small steps X = c/2 in the image of J', and
along the manifold of minimisers the flow is that of L + (eta c/4) tr H.
"""

from collections.abc import Callable
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from undertow import _trees as trees
from undertow._stiff import Linearisation, RosenbrockW, along_eigenvectors
from undertow.manifold.fluctuations import Closure, Fluctuations, directions, fluctuations, image_route
from undertow.manifold.geometry import jacobian
from undertow.manifold.label import label_amount, trace_gradient
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractProblem, Regression

__all__ = [
    "DENSE_LIMIT",
    "TOLERANCE",
    "Observe",
    "Path",
    "Record",
    "observation_of",
    "record_of",
    "solve_average",
    "velocity",
]

DENSE_LIMIT = 500
"""The largest number of parameters without the structure of least squares: every step decomposes a D x D matrix."""
TOLERANCE = 1e-5
"""The default error of a step of the solver. The errors of many steps add up along flat directions: `python -m
benchmarks average` measures the distance to the exact solution, at 1e-3 up to 0.9 % of the path, at 1e-5 0.03 %."""

Observe = dict[str, Callable[[PyTree], PyTree]]
"""Functions of params by name, the argument `observe`."""
Unravel = Callable[[Array], PyTree]


class Record(NamedTuple):
    """Numbers at one time of the averaged flow, for its regime."""

    sharpness: Float[Array, ""]
    """The largest curvature."""
    lowest: Float[Array, ""]
    """The lowest curvature; negative away from minima."""
    growth: Float[Array, ""]
    """The factor of the iteration for X: the second moments of SGD are stable below 1."""
    spread: Float[Array, ""]
    """sqrt(eta tr X), the root mean square distance of SGD to its mean."""
    slow_spread: Float[Array, ""]
    """The same over the directions that have not relaxed."""


class Path(NamedTuple):
    """The averaged flow at the times of its observations."""

    points: Float[Array, "times D"]
    observed: dict[str, PyTree]
    records: Record
    steps: Array


@eqx.filter_jit  # traced once for all stages of the solver, which halves the time to the first result
def velocity(
    noise: AbstractNoise, point: Float[Array, " D"], unravel: Unravel, age: Array, eta: Array, closure: Closure
) -> Float[Array, " D"]:
    """Return the velocity of the averaged flow at a point."""
    problem = noise.problem
    gradient = lambda x: trees.ravel(problem.gradient(unravel(x)))
    if closure == "small_step" and isinstance(problem, Regression) and image_route(problem, point.size):
        amount = label_amount(noise.covariance(unravel(point)), problem)
        if amount is not None:
            rows = jacobian(problem, unravel(point))
            return -gradient(point) - eta * amount / 4 * trace_gradient(problem, point, unravel, rows)

    def third(u: Array, v: Array) -> Array:
        return jax.jvp(lambda x: jax.jvp(gradient, (x,), (u,))[1], (point,), (v,))[1]

    bend = fluctuations(noise, point, unravel, age, eta, closure).expect(third)
    mean_step = -gradient(point) - eta / 2 * bend
    if closure == "small_step":
        return mean_step
    # a flow of this velocity passes the points of the discrete steps, to the next order in eta
    return mean_step + eta / 2 * jax.jvp(gradient, (point,), (mean_step,))[1]


@eqx.filter_jit
def solve_average(
    noise: AbstractNoise,
    params: PyTree,
    times: Float[Array, " times"],
    step_size: Float[Array, ""],
    observe: Observe,
    closure: Closure,
    tolerance: Float[Array, ""],
    max_steps: int,
) -> Path:
    """Solve the averaged flow, with observations at times[0] = 0 and at all later times.

    Points after a failure of the solver are not finite.
    """
    start, unravel = jax.flatten_util.ravel_pytree(params)
    problem, times, eta = noise.problem, times.astype(start.dtype), step_size.astype(start.dtype)

    def linearise(point: Array) -> Linearisation:
        frame = directions(problem, point, unravel)
        return along_eigenvectors(frame.normal, frame.curvature)

    first = 0.1 / (jnp.max(jnp.abs(directions(problem, start, unravel).curvature)) + 1 / times[-1])
    path = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: velocity(noise, y, unravel, t, eta, closure)),
        RosenbrockW(linearise),
        times[0],
        times[-1],
        jnp.minimum(first, times[1]),
        start,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.ClipStepSizeController(diffrax.PIDController(tolerance, tolerance), step_ts=times),
        max_steps=max_steps,
        adjoint=diffrax.ForwardMode(),
        throw=False,
    )

    def observation(at: tuple[Array, Array]) -> tuple[dict[str, PyTree], Record]:
        around = fluctuations(noise, at[0], unravel, at[1], eta, closure)
        return observation_of(around, problem, observe, eta), record_of(around, eta)

    observed, records = jax.lax.map(observation, (path.ys, times))
    return Path(path.ys, observed, records, path.stats["num_steps"])


def record_of(around: Fluctuations, step_size: Array) -> Record:
    """Return the numbers of the regime at one time."""
    total, slow = around.spread()
    root = lambda x: jnp.sqrt(step_size * jnp.maximum(x, 0))
    return Record(jnp.max(around.frame.curvature), around.frame.lowest, around.growth, root(total), root(slow))


def observation_of(
    around: Fluctuations, problem: AbstractProblem, observe: Observe, step_size: Array
) -> dict[str, PyTree]:
    """Return each observable at the mean, its excess (eta/2) tr(f'' X), and their sum, the mean over SGD."""
    point, unravel = around.frame.point, around.frame.unravel
    values = {}
    for name, function in {"loss": problem.loss, **observe}.items():
        value = function(unravel(point))
        excess = _excess(lambda x, f=function: f(unravel(x)), around, step_size)
        values |= {name: value, f"excess_{name}": excess, f"mean_{name}": jax.tree.map(jnp.add, value, excess)}
    return values


def _excess(function: Callable[[Array], PyTree], around: Fluctuations, step_size: Array) -> PyTree:
    point = around.frame.point

    def second(u: Array, v: Array) -> PyTree:
        return jax.jvp(lambda x: jax.jvp(real, (x,), (u,))[1], (point,), (v,))[1]

    def real(x: Array) -> PyTree:
        # whole numbers and truth values have no derivative
        return jax.tree.map(lambda y: jnp.asarray(y) if _is_float(y) else jnp.zeros(jnp.shape(y)), function(x))

    return jax.tree.map(lambda y: step_size / 2 * y, around.expect(second))


def _is_float(value: Array | np.ndarray | float | int) -> Bool[np.ndarray, ""] | bool:
    return jnp.issubdtype(jnp.result_type(value), jnp.inexact)
