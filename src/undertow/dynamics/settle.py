"""Phi, the limit of gradient flow."""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
from jaxtyping import Array, Bool, Float, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow import spectral
from undertow._validate import Number
from undertow.covariance import LabelCovariance
from undertow.problem import AbstractProblem, Population, Regression

__all__ = ["settle"]

POWER_STEPS = 60
DEEPEST_SADDLE = 1e-4
"""The most negative curvature of a minimum, relative to the largest curvature; below it, the end is a saddle."""

LONGEST_JUMP = 1e-3
"""The longest Newton step, relative to 1 + |params|, at the linear end of the flow; the error is its square."""


def settle(
    problem: AbstractProblem, params: PyTree, *, tolerance: Number | None = None, max_steps: int = 100_000
) -> PyTree:
    """Return Phi(params): the limit of d theta/dt = -grad L(theta) from params.

    An adaptive Runge-Kutta method follows the flow until it is linear. Newton's method (matrix-free) then moves along
    the normal directions to |grad L| <= `tolerance` (None: 1e-9 in double precision, 1e-4 in single). A flow that does
    not reach it within `max_steps` steps raises an error.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    >>> print(ut.settle(circle, jnp.array([0.9, 1.2])).round(3))
    [0.6 0.8]
    """
    if isinstance(problem, Population):
        raise TypeError(
            "`settle(problem)`: gradient flow of a `Population` is only known by Monte Carlo; fix a data set with "
            "`population.sample(key, count)` and settle on that."
        )
    if not isinstance(problem, AbstractProblem):
        raise TypeError(f"`settle(problem)`: got a {type(problem).__name__}; give a Problem or a Regression.")
    problem.check(params)
    max_steps = validate.positive_integer("settle", "max_steps", max_steps)
    if tolerance is None:
        single = any(leaf.dtype != jnp.float64 for leaf in jax.tree.leaves(params))
        tolerance = 1e-4 if single else 1e-9
    validate.finite_number("settle", "tolerance", tolerance)
    end, norm, jump, bend = _phi(problem, params, jnp.asarray(tolerance, jnp.result_type(float)), max_steps)
    far = f"`settle`: gradient flow did not reach |grad L| <= {float(tolerance):g} in {max_steps} steps"
    end = eqx.error_if(
        end,
        ~(norm <= float(tolerance)),
        f"{far}; raise `max_steps` or `tolerance`, start closer, or check that the loss has a minimum.",
    )
    end = eqx.error_if(
        end,
        bend < -DEEPEST_SADDLE,
        "`settle`: gradient flow ends at a saddle (the Hessian has a negative eigenvalue there), not at a minimum; "
        "start off its stable manifold, for instance from slightly disturbed params.",
    )
    return eqx.error_if(
        end,
        jump > LONGEST_JUMP,
        f"{far} along its slowest directions, which the flow takes very long to follow; start closer.",
    )


@eqx.filter_jit
def _phi(
    problem: AbstractProblem, params: PyTree, tolerance: Float[Array, ""], max_steps: int
) -> tuple[PyTree, Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Return the end of the flow, the gradient norm there, the length of the Newton steps and the lowest curvature."""
    dtype = jax.tree.leaves(params)[0].dtype
    handover = jnp.sqrt(tolerance) * 0.03
    # a step's error shows in the gradient times the largest curvature: keep it well below the handover
    error = jnp.maximum(handover * 1e-4, 4 * float(jnp.finfo(dtype).eps))
    near = _flow(problem, params, handover, error, max_steps)
    end = _newton(problem, near, tolerance)
    moved = trees.subtract(end, near)
    size = jnp.sqrt(trees.dot(end, end))
    jump = jnp.sqrt(trees.dot(moved, moved)) / (1 + size)
    return end, spectral.norm(problem.gradient(end)), jump, _lowest_curvature(problem, jax.lax.stop_gradient(end))


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
