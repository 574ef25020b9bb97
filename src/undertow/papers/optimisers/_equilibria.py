"""Long runs of an optimiser on `rank_one` beside the predicted equilibria, for claims and studies."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.noise.minibatch import Minibatch
from undertow.optimisers.base import AbstractOptimiser
from undertow.papers.optimisers.models.rank_one import BALANCE, Weights, log_ratio
from undertow.problem import Problem
from undertow.symmetry.equilibrium import Equilibrium, equilibrium
from undertow.verification import statistics

__all__ = ["LongRun", "long_run", "predicted"]

SAVES = 400
"""Number of times at which a run is recorded."""
SHOWN = 16
"""Number of intervals between the observations of a figure."""


class LongRun(NamedTuple):
    """The mean of log(|U|/|W|) over the second half of runs, its standard error, the runs that diverged, a path."""

    mean: float
    error: float
    diverged: int
    path: np.ndarray
    """The steps of some observations, the mean of log(|U|/|W|) over the runs, and its standard error."""


def long_run(
    problem: Problem,
    start: Weights,
    optimiser: AbstractOptimiser,
    *,
    step_size: float,
    steps: int,
    seeds: int,
    key: Key[Array, ""],
) -> LongRun:
    """Run an optimiser with batches of one sample."""
    run = descend(
        Minibatch(problem, 1), start, optimiser=optimiser, step_size=step_size, steps=steps, every=steps // SAVES,
        observe={"log_ratio": log_ratio}, seeds=seeds, key=key, progress=False,
    )  # fmt: skip
    values = run.observed["log_ratio"][~run.diverged]
    mean, error = statistics.mean(np.asarray(values[:, values.shape[1] // 2 :].mean(axis=1)))
    path = np.stack([run.step, values.mean(axis=0), np.asarray(standard_error(values, axis=0))])
    return LongRun(float(mean), float(error), int(run.diverged.sum()), path[:, :: SAVES // SHOWN])


def predicted(
    problem: Problem, start: Weights, optimiser: AbstractOptimiser, *, step_size: float, corrected: bool = True
) -> tuple[float, Equilibrium]:
    """Return the predicted mean of log(|U|/|W|), and the equilibrium.

    >>> import jax
    >>> from undertow import Adam
    >>> from undertow.papers.optimisers._equilibria import predicted
    >>> from undertow.papers.optimisers.models.rank_one import rank_one
    >>> value, end = predicted(*rank_one(jax.random.key(0)), Adam(), step_size=0.004, corrected=False)
    >>> print(value < 0, end.optimiser)
    True Adam
    """
    end = equilibrium(
        Minibatch(problem, 1), start, BALANCE, step_size=step_size, optimiser=optimiser, corrected=corrected
    )
    return float(end.expected(log_ratio)), end
