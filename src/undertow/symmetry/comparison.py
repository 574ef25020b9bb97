"""Compare the charges at the end of a run with a predicted equilibrium, and warn where they are far from it."""

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, PyTree

from undertow.estimate import standard_error
from undertow.symmetry.generators import AbstractSymmetry
from undertow.symmetry.relaxation import slowest_time, squares
from undertow.trajectory import Trajectory

if TYPE_CHECKING:
    from undertow.symmetry.equilibrium import Equilibrium

__all__ = ["FarFromEquilibrium", "RunComparison", "compare_run"]

ENOUGH = 5.0
"""Relaxation times after which less than a percent of the first distance is left."""


KNOWN = ("SGD", "RMSProp", "Adam", "AdamW")
"""Names of optimisers that a run may have; the diffusion has an optimiser of its own."""


class FarFromEquilibrium(UserWarning):
    """Warning that the charges at the end of a run are far from the predicted equilibrium.

    >>> import jax.numpy as jnp, warnings
    >>> import undertow as ut
    >>> from undertow.symmetry.comparison import FarFromEquilibrium
    >>> noise = ut.Minibatch(ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2, jnp.array([0.0, 2.0])), 1)
    >>> params, balance = jnp.array([2.0, 0.5]), ut.Rescaling(lambda p: p[0], lambda p: p[1])
    >>> end = ut.equilibrium(noise, params, balance, step_size=0.01)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", FarFromEquilibrium)
    ...     found = end.compare(ut.descend(noise, params, step_size=0.01, steps=100, key=0))
    >>> print(caught[0].category.__name__, found.steps_left[0] > 1000)
    FarFromEquilibrium True
    """


@dataclass(frozen=True)
class RunComparison:
    """The charges at the end of a run and the predicted equilibrium. Tuples have one entry per symmetry.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> noise = ut.Minibatch(ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2, jnp.array([0.0, 2.0])), 1)
    >>> balance = ut.Rescaling(lambda p: p[0], lambda p: p[1])
    >>> end = ut.equilibrium(noise, jnp.array([2.0, 0.5]), balance, step_size=0.01)
    >>> found = end.compare(ut.descend(noise, end.params, step_size=0.01, steps=100, key=0))
    >>> print(f"distance {found.distance[0]:.2f} after {found.relaxations[0]:.2f} relaxation times")
    distance 0.00 after 0.04 relaxation times
    """

    charge: tuple[np.ndarray, ...]
    """The charges at the end of the run, the mean over seeds that did not diverge."""
    standard_error: tuple[np.ndarray, ...]
    """Their standard errors; zero for a run without seeds."""
    distance: tuple[float, ...]
    """The largest amount between these charges and the predicted ones, to first order: 0.1 is a tenth of a weight.
    Generators without a finite relaxation time are left out."""
    relaxations: tuple[float, ...]
    """The length of the run in relaxation times of the slowest generator: the distance falls by a factor e in each."""
    steps_left: tuple[float, ...]
    """The steps after which the distance is expected to be within the tolerance; 0 where it is, or where the run was
    long enough."""


def compare_run(end: "Equilibrium", run: Trajectory, tolerance: float) -> RunComparison:
    """Return the comparison, and warn of the symmetries whose charges are further than `tolerance` from `end`."""
    _check(end, run)
    finite = np.logical_not(np.atleast_1d(run.diverged))
    seeds = jax.tree.map(lambda x: np.asarray(x)[None], run.params) if run.seeds is None else run.params
    seeds = jax.tree.map(lambda x: np.asarray(x)[finite], seeds)
    rows = []
    for symmetry, charge, times, name in zip(
        end.symmetries, end.charge, end.relaxation_steps, end.names, strict=True
    ):  # fmt: skip
        target = charge if end.offset is None else end.expected(symmetry.charge)
        values = np.asarray(jax.vmap(symmetry.charge)(seeds), np.float64)
        mean = np.asarray(values.mean(axis=0))
        error = np.asarray(standard_error(values)) if len(values) > 1 else np.zeros_like(mean)
        amount = lambda change, s=symmetry, t=times: _amount(s, end.params, change, t)
        away, length = amount(np.asarray(mean - target)), _relaxations(end, run, slowest_time(times))
        far = away - 2 * amount(error) > tolerance
        more = _steps_left(away, tolerance, length, run) if far else 0.0
        if far:
            warnings.warn(_message(name, run, away, length, more, tolerance), FarFromEquilibrium, stacklevel=3)
        rows.append((mean, error, away, length, more))
    return RunComparison(*zip(*rows, strict=True))


def _check(end: "Equilibrium", run: Trajectory) -> None:
    if not end.symmetries:
        raise TypeError("`Equilibrium.compare(run)`: the equilibrium was not made by `equilibrium(...)`.")
    if not isinstance(run, Trajectory) or not np.isfinite(run.time[-1]):
        made_by = run.facts.get("made_by") if isinstance(run, Trajectory) else type(run).__name__
        raise TypeError(f"`Equilibrium.compare(run)`: got a {made_by}; give a run of `descend` or `diffuse`.")
    if np.all(run.diverged):
        raise ValueError("`Equilibrium.compare(run)`: every run diverged, so there are no charges to compare.")
    trained, used = run.facts.get("optimiser"), run.facts.get("step_size")
    if trained in KNOWN and (trained == "SGD") != (end.optimiser == "SGD"):
        raise ValueError(
            f"`Equilibrium.compare(run)`: the run has the optimiser {trained} and the equilibrium is that of "
            f"{end.optimiser}; call `equilibrium(..., optimiser=)` with the optimiser of the run."
        )
    depends = end.weight_decay > 0 or end.offset is not None
    if depends and isinstance(used, float | int) and not math.isclose(used, end.step_size, rel_tol=1e-5):
        raise ValueError(
            f"`Equilibrium.compare(run)`: the run has the step size {used:g} and the equilibrium is that of step size "
            f"{end.step_size:g}; they differ: call `equilibrium(..., step_size={used:g})`."
        )


def _amount(symmetry: AbstractSymmetry, params: PyTree, change: np.ndarray, times: np.ndarray | Array) -> float:
    """Return the largest amount that changes the charges at params by `change`, to first order.

    For a matrix X of GL(d) the change is (X w + w X)/2, with w the weights of both sides.
    """
    weight = np.asarray(squares(symmetry, params), np.float64)
    if weight.ndim == 2:
        values, vectors = np.linalg.eigh(weight)
        pair = np.maximum(values[:, None] + values, 0) / 2
        kept = pair > 1e-10 * pair.max()
        amount = np.where(kept, vectors.T @ change @ vectors / np.where(kept, pair, 1), 0)
        return float(np.abs(np.linalg.eigvalsh(amount)).max())
    moving = np.isfinite(times) & (weight > 0)
    return float(np.abs(np.where(moving, change / np.where(weight > 0, weight, 1), 0)).max())


def _relaxations(end: "Equilibrium", run: Trajectory, steps: float) -> float:
    """Return the length of a run in relaxation times, for any schedule: the sum of eta (2 lambda + eta r) over steps.

    r is the noise over the weights, which the relaxation time 1/(eta (2 lambda + eta r)) implies; lambda in the place
    of 2 lambda for Adam, whose metric follows the params.
    """
    eta, decay = end.step_size, end.weight_decay * (2 if end.optimiser == "SGD" else 1)
    ratio = (1 / (steps * eta) - decay) / eta
    return float(decay * run.time[-1] + ratio * run.slow_time[-1])


def _steps_left(away: float, tolerance: float, length: float, run: Trajectory) -> float:
    if length >= ENOUGH:
        return 0.0
    return float(run.step[-1] / length * math.log(away / tolerance)) if length > 0 else math.inf


def _message(name: str, run: Trajectory, away: float, length: float, more: float, tolerance: float) -> str:
    start = (
        f"`Equilibrium.compare(run)`: {name}: after {run.step[-1]:,.0f} steps, {length:.2g} relaxation times, the "
        f"charges are an amount of {away:.2g} away from the predicted equilibrium"
    )
    if length >= ENOUGH:
        return (
            f"{start}. The run is long enough: the noise changed on the way (the loss fell, or the step is large). "
            "Predict again from `run.params`."
        )
    return f"{start}; about {more:,.0f} more steps bring them within {tolerance:g}: `run.resume(steps={more:.0f})`."
