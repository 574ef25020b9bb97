"""Phi: where gradient flow ends."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import trees, validate
from undertow.problem import AbstractProblem, Population
from undertow.validate import Number

__all__ = ["settle"]


def settle(
    problem: AbstractProblem, params: PyTree, *, tolerance: Number | None = None, max_steps: int = 100_000
) -> PyTree:
    """Phi(params): the limit of d theta/dt = -grad L(theta) from params, by an adaptive Runge-Kutta method.

    The flow ends where |grad L| <= `tolerance` (None: 1e-9 in double precision, 1e-4 in single). It must get there
    within `max_steps` steps: a flow that does not converge is an error, not a silent answer.

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
    end, norm, _ = _flow(problem, params, jnp.asarray(tolerance, jnp.result_type(float)), max_steps)
    return eqx.error_if(
        end,
        ~(norm <= float(tolerance)),
        f"`settle`: gradient flow did not reach |grad L| <= {float(tolerance):g} in {max_steps} steps; raise "
        "`max_steps` or `tolerance`, start closer, or check that the loss has a minimum.",
    )


@eqx.filter_jit
def _flow(
    problem: AbstractProblem, params: PyTree, tolerance: Float[Array, ""], max_steps: int
) -> tuple[PyTree, Float[Array, ""], Any]:
    """The end of the flow, the gradient norm there, and the steps taken."""

    def gradient_norm(theta: PyTree) -> Float[Array, ""]:
        gradient = problem.gradient(theta)
        return jnp.sqrt(trees.dot(gradient, gradient))

    def arrived(t: Any, y: PyTree, args: Any, **_: Any) -> Any:
        return gradient_norm(y) <= tolerance

    error = float(jnp.finfo(jax.tree.leaves(params)[0].dtype).eps) ** 0.6
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: trees.scale(-1.0, problem.gradient(y))),
        diffrax.Tsit5(),
        t0=0.0,
        t1=jnp.inf,
        dt0=None,
        y0=params,
        stepsize_controller=diffrax.PIDController(rtol=error, atol=error),
        event=diffrax.Event(arrived),
        max_steps=max_steps,
        throw=False,
    )
    end = jax.tree.map(lambda leaf: leaf[-1], solution.ys)
    return end, gradient_norm(end), solution.stats["num_steps"]
