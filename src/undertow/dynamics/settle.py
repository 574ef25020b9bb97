"""Phi, the limit of gradient flow."""

import warnings
from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow import spectral
from undertow._calls import checked_call
from undertow._table import ResultTable, number
from undertow._validate import Number
from undertow.covariance import LabelCovariance
from undertow.dynamics.stiff_flow import stiff_end, stiff_route
from undertow.problem import AbstractProblem, Population, Regression

__all__ = ["Settled", "settle"]

EXPLICIT_STEPS = 10_000
"""The number of explicit steps after which a flow counts as stiff, where the L-stable method can be used."""

POWER_STEPS = 60
DEEPEST_SADDLE = 1e-4
"""The most negative curvature of a minimum, relative to the largest curvature; below it, the end is a saddle."""

LONGEST_JUMP = 1e-3
"""The longest Newton step, relative to 1 + |params|, at the linear end of the flow; the error is its square."""


class Settled(eqx.Module):
    """The end of a gradient flow, and how well it is resolved; `print` shows it."""

    params: PyTree
    """Phi, the end point."""
    loss: Float[Array, ""]
    """The loss there; for least squares half the mean squared residual."""
    gradient_norm: Float[Array, ""]
    """|grad L| there."""
    distance: Float[Array, ""]
    """An estimate of the distance that the flow still has to go along its slowest directions: |H^+ grad L|."""
    resolution: Float[Array, ""]
    """The flow has arrived along directions of a larger curvature than this; zero where it has along all of them."""

    @property
    def resolved(self) -> bool:
        """Whether the flow has arrived along all directions."""
        return float(self.resolution) == 0

    def _table(self) -> ResultTable:
        title = "end of gradient flow" + ("" if self.resolved else ", not resolved along its slowest directions")
        rows = (
            ("loss", number(float(self.loss))),
            ("norm of the gradient", number(float(self.gradient_norm))),
            ("distance to go", number(float(self.distance))),
            ("resolved curvatures", f"above {float(self.resolution):.3g}"),
        )
        return ResultTable(title, (), rows, "lr")

    def __str__(self) -> str:
        return self._table().text() if all(map(validate.concrete, jax.tree.leaves(self))) else repr(self)

    def _repr_html_(self) -> str:
        return self._table().html()


@checked_call("settle")
def settle(
    problem: AbstractProblem, params: PyTree, *, tolerance: Number | None = None, max_steps: int = 100_000
) -> Settled:
    """Return Phi(params), the limit of d theta/dt = -grad L(theta) from params, as `.params` of the result.

    An adaptive Runge-Kutta method follows the flow until it is linear. Newton's method (matrix-free) then moves along
    the normal directions to |grad L| <= `tolerance` (None: 1e-9 in double precision, 1e-4 in single). Where this needs
    too many steps, the problem is ill-conditioned: an L-stable method then follows the flow, with steps that do not
    depend on the largest curvature (a `Regression` with up to 2,000 equations, or at most 1,000 parameters).

    The slowest directions of an ill-conditioned flow may not have arrived even if |grad L| is small. A warning then
    gives the curvature below which the flow is not resolved, which is the `resolution` of the result. A flow that does
    not reach `tolerance` within `max_steps` steps raises an error, and so does one that ends at a saddle.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    >>> end = ut.settle(circle, jnp.array([0.9, 1.2]))
    >>> print(end.params.round(3), end.resolved)
    [0.6 0.8] True
    """
    if isinstance(problem, Population):
        raise TypeError(
            "`settle(problem)`: gradient flow of a `Population` is only known by Monte Carlo; fix a data set with "
            "`population.sample(key, count)` and settle on that."
        )
    validate.instance("settle", "problem", problem, AbstractProblem, "a Problem or a Regression")
    validate.params_of_floats("settle", params)
    problem.check(params)
    params = trees.in_default_precision(params)
    max_steps = validate.positive_integer("settle", "max_steps", max_steps)
    if tolerance is None:
        tolerance = 1e-9 if trees.machine_epsilon(params) < 1e-10 else 1e-4
    validate.finite_number("settle", "tolerance", tolerance, positive=True)
    goal = jax.device_put(np.asarray(tolerance, jnp.result_type(float)))
    known = all(validate.concrete(leaf) for leaf in jax.tree.leaves((params, problem)))
    stiff = known and stiff_route(problem, params)
    end, lowest, short = _phi(problem, params, goal, min(max_steps, EXPLICIT_STEPS) if stiff else max_steps)
    if stiff and not (float(end.gradient_norm) <= float(tolerance) and bool(short)):
        end, lowest = _ill_conditioned(problem, params, goal, max_steps)
    messages = _messages(float(tolerance), max_steps)
    if not known:
        failures = jnp.stack([~(end.gradient_norm <= goal), lowest < -DEEPEST_SADDLE, ~short])
        return eqx.branched_error_if(end, jnp.any(failures), jnp.argmax(failures), messages, on_error="raise")
    missed, saddle, slow = messages
    # rounding limits the gradient of an ill-conditioned problem: a flow that has come so far has an end
    reached = max(float(tolerance), trees.machine_epsilon(params) ** 0.5 * float(_measure(problem, params)[1]))
    if not float(end.gradient_norm) <= (reached if stiff else float(tolerance)):
        raise ValueError(missed)
    if float(lowest) < -DEEPEST_SADDLE:
        raise ValueError(saddle)
    if not stiff and not bool(short):
        raise ValueError(slow)
    if not end.resolved or float(end.gradient_norm) > float(tolerance):
        warnings.warn(_unresolved(end, float(tolerance)), UserWarning, stacklevel=3)
    return end


def _messages(tolerance: float, max_steps: int) -> tuple[str, str, str]:
    """Return the messages for a flow that does not end, for one that ends at a saddle, and for one that is too slow."""
    far = f"`settle`: gradient flow did not reach |grad L| <= {tolerance:g} in {max_steps} steps"
    return (
        f"{far}; raise `max_steps` or `tolerance`, start closer, or check that the loss has a minimum.",
        "`settle`: gradient flow ends at a saddle (the Hessian has a negative eigenvalue there), not at a minimum; "
        "start off its stable manifold, for instance from slightly perturbed params.",
        f"{far} along its slowest directions, which the flow takes very long to follow; start closer.",
    )


def _unresolved(end: Settled, tolerance: float) -> str:
    norm = f"|grad L| = {float(end.gradient_norm):.2g}"
    if float(end.gradient_norm) > tolerance:
        norm += f" (`tolerance` {tolerance:.2g} was not reached)"
    return (
        f"`settle`: the problem is ill-conditioned: at {norm} and the loss {float(end.loss):.2g} the flow has not "
        f"arrived along directions of curvature {float(end.resolution):.2g} and below, where it has about "
        f"{float(end.distance):.2g} to go. `ut.average` predicts SGD without an end point."
    )


def _ill_conditioned(
    problem: AbstractProblem, params: PyTree, tolerance: Float[Array, ""], max_steps: int
) -> tuple[Settled, Float[Array, ""]]:
    """Return the end of the flow by the L-stable method, and the lowest relative curvature there."""
    end = stiff_end(problem, params, tolerance, LONGEST_JUMP, max_steps)
    loss, norm, lowest = _measure(problem, end.params)
    return Settled(end.params, loss, norm, end.distance, end.resolution), lowest


@eqx.filter_jit
def _measure(problem: AbstractProblem, params: PyTree) -> tuple[Array, Array, Array]:
    """Return the loss, the norm of its gradient and its lowest relative curvature."""
    lowest = _lowest_curvature(problem, jax.lax.stop_gradient(params))
    return problem.loss(params), spectral.norm(problem.gradient(params)), lowest


@eqx.filter_jit
def _phi(
    problem: AbstractProblem, params: PyTree, tolerance: Float[Array, ""], max_steps: int
) -> tuple[Settled, Float[Array, ""], Bool[Array, ""]]:
    """Return the end of the flow by explicit steps and Newton's method, and the lowest relative curvature there.

    The last result is whether the Newton steps were so short that the flow is linear there.
    """
    dtype = jax.tree.leaves(params)[0].dtype
    handover = jnp.sqrt(tolerance) * 0.03
    # a step's error shows in the gradient times the largest curvature: keep it well below the handover
    error = jnp.maximum(handover * 1e-4, 4 * float(jnp.finfo(dtype).eps))
    near = _flow(problem, params, handover, error, max_steps)
    end = _newton(problem, near, tolerance)
    jump = spectral.norm(trees.subtract(end, near))
    loss, norm, lowest = _measure(problem, end)
    zero = jnp.zeros_like(jump)
    return Settled(end, loss, norm, zero, zero), lowest, jump <= LONGEST_JUMP * (1 + spectral.norm(end))


def _lowest_curvature(problem: AbstractProblem, params: PyTree) -> Float[Array, ""]:
    """Return the smallest eigenvalue of the Hessian over the largest in absolute value."""
    product = lambda v: jax.jvp(problem.gradient, (params,), (v,))[1]
    largest = jnp.abs(_strongest(product, params)) + 1e-30
    shifted = _strongest(lambda v: trees.subtract(trees.scale(1.05 * largest, v), product(v)), params)
    return (1.05 * largest - shifted) / largest


def _strongest(apply: Callable[[PyTree], PyTree], like: PyTree) -> Float[Array, ""]:
    """Return the eigenvalue of the largest size of a symmetric operator, by power iteration from a fixed start."""
    start = trees.standard_normal(jax.random.key(0), jax.lax.stop_gradient(like))
    v = spectral.power_iteration(apply, spectral.unit(start), POWER_STEPS)
    return trees.dot(v, apply(v))


def _flow(
    problem: AbstractProblem, params: PyTree, target: Float[Array, ""], error: Float[Array, ""], max_steps: int
) -> PyTree:
    """Follow gradient flow until |grad L| <= target, or max_steps."""

    def arrived(t: Number, y: PyTree, args: PyTree, **_: object) -> Bool[Array, ""]:
        return spectral.norm(problem.gradient(y)) <= target

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: trees.scale(-1.0, problem.gradient(y))),
        diffrax.Tsit5(),
        t0=0.0,
        t1=jnp.inf,
        dt0=None,
        y0=params,
        stepsize_controller=diffrax.PIDController(rtol=error, atol=error),
        event=diffrax.Event(arrived),
        adjoint=diffrax.ForwardMode(),
        max_steps=max_steps,
        throw=False,
    )
    return jax.tree.map(lambda leaf: leaf[-1], solution.ys)


def _newton(problem: AbstractProblem, params: PyTree, tolerance: Float[Array, ""]) -> PyTree:
    """Take a few steps x - H^+ grad L, which replace the rest of the flow from a point where it is linear.

    To first order gradient flow from x ends at x - H^+ grad L; the error is quadratic in the step.
    """

    def refine(state: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        x, count = state
        return trees.subtract(x, _normal_step(problem, x)), count + 1

    def going(state: tuple[PyTree, Array]) -> Array:
        x, count = state
        # at least two steps: on the manifold they are zero, but their derivative makes dPhi the projector
        return (count < 2) | ((spectral.norm(problem.gradient(x)) > tolerance) & (count < 8))

    return jax.lax.while_loop(going, refine, (params, jnp.asarray(0)))[0]


def _normal_step(problem: AbstractProblem, x: PyTree) -> PyTree:
    """Return H^+ grad L by conjugate gradients, without the tangent directions.

    Near the manifold H has small eigenvalues of either sign along it, of the size of the distance, and inverting them
    would move the point along the manifold as far as it is away from it. For least squares with zero residuals the
    Gauss-Newton matrix J'J/n has none: its range holds the gradient exactly. Else the filter h/(h^2 + mu^2) is used,
    which is 1/h for curvatures h well above mu and small for those well below.
    """
    gradient = problem.gradient(x)
    most = min(4 * trees.count(x), 4000)
    single = jnp.finfo(jax.tree.leaves(x)[0].dtype).eps > 1e-10
    accuracy = 1e-5 if single else 1e-11
    close = 1e-2 if single else 1e-4
    still = jax.lax.stop_gradient(x)
    hessian_there = lambda v: jax.jvp(problem.gradient, (still,), (v,))[1]

    def filtered() -> PyTree:
        hessian = lambda v: jax.jvp(problem.gradient, (x,), (v,))[1]
        cut = close * jnp.abs(_strongest(hessian_there, x))
        squared = lambda v: trees.add(hessian(hessian(v)), trees.scale(cut**2, v))
        return jax.scipy.sparse.linalg.cg(squared, hessian(gradient), tol=accuracy, maxiter=most)[0]

    if not isinstance(problem, Regression):
        return filtered()
    gauss_newton = lambda at: LabelCovariance(problem, at, jnp.asarray(1.0)).mv

    def least_squares() -> PyTree:
        return jax.scipy.sparse.linalg.cg(gauss_newton(x), gradient, tol=accuracy, maxiter=most)[0]

    # residuals that are not zero add sum_i r_i f_i''/n to the Hessian: tested along a random direction
    v = trees.standard_normal(jax.random.key(1), still)
    expected = gauss_newton(still)(v)
    rest = spectral.norm(trees.subtract(hessian_there(v), expected))
    return jax.lax.cond(rest <= close * spectral.norm(expected), least_squares, filtered)
