"""The error of a predicted mean of SGD, measured by a few runs of SGD.

An estimate from the next order of the theory assumes that the fluctuations stay small. Runs of SGD assume nothing, and
their spread shows whether they stay together.
"""

import math
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow.dynamics.descend import descend
from undertow.noise.base import AbstractNoise

__all__ = ["SimulatedError", "simulate_error"]

SIGNIFICANT = 3.0
"""A distance of at least this many standard errors counts as an error of the prediction."""


@dataclass(frozen=True)
class SimulatedError:
    """The distance of the mean of some runs of SGD to a predicted mean."""

    distance: float
    """The distance, without the part that comes from the finite number of runs."""
    standard_error: float
    spread: float
    """The root mean square distance of the runs to their mean."""
    seeds: int
    diverged: int

    @property
    def significant(self) -> bool:
        """Whether the distance is more than three standard errors."""
        return not self.diverged and self.distance > SIGNIFICANT * self.standard_error


def simulate_error(
    noise: AbstractNoise, params: PyTree, end: Float[Array, " D"] | np.ndarray, step_size: float, steps: int, seeds: int
) -> SimulatedError:
    """Return the distance of the mean of SGD after `steps` steps to a predicted point `end`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.dynamics.simulated_error import simulate_error
    >>> bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    >>> error = simulate_error(ut.Isotropic(bowl, 0.1), jnp.ones(2), jnp.array([0.0, 1.0]), 0.1, 200, seeds=64)
    >>> print(round(error.distance, 1), error.significant)
    1.0 True
    """
    run = descend(noise, params, step_size=step_size, steps=steps, seeds=seeds, key=0, progress=False)
    ends = np.asarray(jax.vmap(trees.ravel)(run.params), np.float64)
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.sum(ends**2, axis=1))
    diverged = int(np.sum(np.asarray(run.diverged) | ~finite))
    if diverged:
        return SimulatedError(math.nan, math.nan, math.nan, seeds, diverged)
    gap = ends.mean(axis=0) - np.asarray(end, np.float64)
    variance = float(np.sum(ends.var(axis=0, ddof=1)))
    # the square of the mean's own error is expected in the square of the distance
    distance = math.sqrt(max(float(gap @ gap) - variance / seeds, 0.0))
    return SimulatedError(distance, math.sqrt(variance / seeds), math.sqrt(variance), seeds, 0)
