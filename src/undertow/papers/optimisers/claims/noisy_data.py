"""The mean end point of minibatch SGD on a factorisation that does not fit its data."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow import _trees as trees
from undertow.dynamics.average import average
from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.manifold.averaged import Observe
from undertow.noise.minibatch import Minibatch
from undertow.papers.optimisers.models.factorisation import charge, noisy_factorisation
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAVES = 6


@dataclass(frozen=True)
class NoisyFactors:
    """Minibatch SGD on U W x = y with noisy labels, from the minimiser with balanced factors."""

    seeds: int
    """Number of runs."""
    step_size: float = 0.04
    """Step size η of SGD."""
    time: float = 30.0
    """Length of a run, steps * step_size."""
    batch_size: int = 2
    """Number of samples in a batch."""
    samples: int = 40
    """Number of samples."""
    problem: int = 2
    """Seed of the data."""


def _measure(parameters: NoisyFactors, key: Key[Array, ""]) -> Measurement:
    p = parameters
    problem, start = noisy_factorisation(jax.random.key(p.problem), samples=p.samples)
    noise = Minibatch(problem, p.batch_size)
    observe: Observe = {"charge": charge, "point": trees.ravel}
    steps = round(p.time / p.step_size)
    run = descend(
        noise, start, step_size=p.step_size, steps=steps, every=steps // SAVES, observe=observe, seeds=p.seeds, key=key,
        progress=False,
    )  # fmt: skip
    solve = partial(
        average, noise, start, step_size=p.step_size, time=p.time, observe=observe, num_saves=SAVES,
        estimate_error=False,
    )  # fmt: skip
    flow, rival = solve(), solve(closure="small_step")
    good = ~run.diverged
    end, other = flow.observed["point"][-1], rival.observed["point"][-1]
    moved = np.linalg.norm(end - flow.observed["point"][0])
    points = run.observed["point"][good][:, -1]
    distance = float(np.linalg.norm(points.mean(axis=0) - end) / moved)
    # the root mean square of the error of the mean, by which the distance exceeds that of the exact mean at most
    error = float(np.linalg.norm(standard_error(points)) / moved)
    charges = run.observed["charge"][good]
    predicted, small = flow.observed["mean_charge"], rival.observed["mean_charge"]
    change, change_error = statistics.mean((charges[:, -1] - charges[:, 0]) / (predicted[-1] - predicted[0]))
    checks = (
        Check("distance of the mean end of SGD from that of the averaged flow / distance moved", distance, 0.0,
              error, Below(0.1), alternative=float(np.linalg.norm(other - end) / moved)),
        Check("mean change of the charge |U|² - |W|² of SGD / averaged flow", change, 1.0, change_error,
              Within(0.05, 0.15), alternative=float((small[-1] - small[0]) / (predicted[-1] - predicted[0]))),
    )  # fmt: skip
    columns = {
        "sgd": charges.mean(axis=0),
        "error": charges.std(axis=0, ddof=1) / len(charges) ** 0.5,
        "flow": predicted,
        "rival": small,
    }
    data = xarray.Dataset(
        {name: ("time", column) for name, column in columns.items()},
        coords={"time": np.linspace(0, p.time, SAVES + 1)},
    )
    return Measurement(checks, data, p.seeds, int(run.diverged.sum()))


def _draw(measurement: Measurement, parameters: NoisyFactors) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.theory(axes, data.time, data.flow, "averaged flow")
    style.theory(axes, data.time, data.rival, "averaged flow for small steps", "red")
    style.points(axes, data.time, data.sgd, data.error, "mean of SGD")
    axes.set(xlabel="time, steps × step size", ylabel="charge |U|² − |W|²")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="averaged-flow-noisy-data",
        paper="optimisers",
        place="Problems that do not fit",
        statement="The averaged flow needs no zero loss. On a matrix factorisation with noisy labels it predicts where "
        "the mean of minibatch SGD goes along the minimisers, and the change of the charge |U|² - |W|².",
        equation="dθ/dt = (1 + (η/2) H) F,  F = -∇L - (η/2) d³L[X],  with Σ > 0 at the minimum",
        alternative="The mean moves as for small steps, with H X + X H = Σ.",
        rests_on=("batch-curvatures",),
        scales={"smoke": NoisyFactors(4096), "default": NoisyFactors(32768), "full": NoisyFactors(131072)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
)
