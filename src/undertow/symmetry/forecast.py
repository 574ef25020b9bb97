"""Forecast of training along symmetries: relaxation times, sharpness at equilibrium, and the largest step size."""

from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.estimate import Estimate
from undertow.noise.base import AbstractNoise
from undertow.problem import Population
from undertow.symmetry import precision
from undertow.symmetry.curvature import Spectrum, measure_curvature
from undertow.symmetry.equilibrium import Equilibrium, equilibrium
from undertow.symmetry.generators import AbstractSymmetry
from undertow.symmetry.relaxation import slowest_time

__all__ = ["Forecast", "forecast"]


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
    spectrum: tuple[Spectrum | None, Spectrum | None]
    """The spectrum of H, now and at equilibrium; None where it was not computed."""


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
    now, then = (measure_curvature(problem, p, key) for p in (params, end.params))
    return Forecast(
        equilibrium=end,
        relaxation=relaxation,
        phase="fast" if slowest < falling else "slow",
        sharpness=(now.sharpness, then.sharpness),
        largest_step=(now.largest_step, then.largest_step),
        spectrum=(now.spectrum, then.spectrum),
    )
