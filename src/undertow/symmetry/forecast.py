"""Forecast of training along symmetries: relaxation times, sharpness at equilibrium, and the largest step size."""

from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.flatten_util
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow import spectral
from undertow._validate import KeyLike, Number
from undertow.estimate import Estimate
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractProblem, Population
from undertow.symmetry import precision
from undertow.symmetry.equilibrium import Equilibrium, equilibrium
from undertow.symmetry.generators import AbstractSymmetry
from undertow.symmetry.relaxation import slowest_time

__all__ = ["Forecast", "forecast", "largest_curvature", "trace_of_hessian"]


class Forecast(eqx.Module):
    """The noise equilibrium and the changes on the way to it. Tuples have one entry per symmetry."""

    equilibrium: Equilibrium
    relaxation: tuple[float, ...]
    """The largest finite relaxation time of each symmetry, in steps; infinite where there is none."""
    phase: Literal["fast", "slow"]
    """fast: charges reach equilibrium while the loss still falls; slow: they drift after the loss has converged."""
    sharpness: tuple[Estimate, Estimate]
    """Tr H now and at equilibrium."""
    largest_step: tuple[float, float]
    """2/lambda_max(H), now and at equilibrium. Above it even gradient descent diverges; SGD needs a smaller step."""


def forecast(
    noise: AbstractNoise,
    params: PyTree,
    symmetries: AbstractSymmetry | Sequence[AbstractSymmetry],
    *,
    step_size: Number,
    weight_decay: Number = 0.0,
    key: KeyLike = 0,
) -> Forecast:
    """Return the equilibrium of the charges at this step size and batch size, the time to it, and the sharpness there.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.symmetry.forecast import forecast
    >>> product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    >>> balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    >>> params = {"u": jnp.array(4.0), "w": jnp.array(0.25)}
    >>> result = forecast(ut.Minibatch(product, 1), params, balance, step_size=0.01)
    >>> print(f"{result.relaxation[0]:.0f} steps, {result.phase}, steps up to {result.largest_step[1]:.2f}")
    2500 steps, fast, steps up to 0.50
    """
    several = (symmetries,) if isinstance(symmetries, AbstractSymmetry) else tuple(symmetries)
    key = validate.as_key("forecast", key)
    noise, params = precision.widened((noise, params))
    end = equilibrium(noise, params, several, step_size=step_size, weight_decay=weight_decay)
    problem = noise.problem.sample(key, 1024) if isinstance(noise.problem, Population) else noise.problem
    relaxation = tuple(map(slowest_time, end.relaxation_steps))
    slowest = max((t for t in relaxation if np.isfinite(t)), default=np.inf) * float(step_size)
    loss, gradient = problem.loss(params), problem.gradient(params)
    falling = float(loss) / max(float(trees.dot(gradient, gradient)), 1e-300)
    bound = lambda p: 2 / max(largest_curvature(problem, p, key), 1e-300)
    return Forecast(
        equilibrium=end,
        relaxation=relaxation,
        phase="fast" if slowest < falling else "slow",
        sharpness=(trace_of_hessian(problem, params, key), trace_of_hessian(problem, end.params, key)),
        largest_step=(bound(params), bound(end.params)),
    )


def _hessian_product(problem: AbstractProblem, params: PyTree) -> Callable[[PyTree], PyTree]:
    return lambda v: jax.jvp(problem.gradient, (params,), (v,))[1]


def trace_of_hessian(problem: AbstractProblem, params: PyTree, key: KeyLike, probes: int = 64) -> Estimate:
    """Return Tr H, estimated with random signs, and its standard error."""
    probes = validate.positive_integer("trace_of_hessian", "probes", probes)
    return Estimate.of(_quadratics(problem, params, jax.random.split(validate.as_key("trace_of_hessian", key), probes)))


@eqx.filter_jit
def _quadratics(problem: AbstractProblem, params: PyTree, keys: Array) -> Array:
    draw = lambda key: spectral.random_signs(key, params)
    return spectral.quadratic_forms(draw, _hessian_product(problem, params), keys)


def largest_curvature(problem: AbstractProblem, params: PyTree, key: KeyLike, steps: int = 40) -> float:
    """Return the largest eigenvalue of the Hessian by Lanczos iteration (from below, to about one percent)."""
    return float(_lanczos(problem, params, validate.as_key("largest_curvature", key), min(steps, trees.count(params))))


@eqx.filter_jit
def _lanczos(problem: AbstractProblem, params: PyTree, key: Array, steps: int) -> Array:
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    product = _hessian_product(problem, params)
    start = jax.random.normal(key, flat.shape, flat.dtype)
    return spectral.lanczos_largest(lambda v: trees.ravel(product(unravel(v))), start, steps)
