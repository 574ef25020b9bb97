"""Warm-up and cosine schedules of the step size as clocks: the motion along the manifold at equal slow time."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Int, Key

from undertow import _trees as trees
from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.base import second_moment
from undertow.noise.label import LabelNoise
from undertow.optimisers import SGD, Adam
from undertow.papers.optimisers.models.networks import HessianTrace
from undertow.papers.zero_loss.models.linear import LinearModel
from undertow.trajectory import Trajectory
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIMISERS = ("SGD", "Adam")
SHARES = {"constant": 1.0, "warm-up": 2 / 3, "cosine": 3 / 8}
"""The mean of the squared step size over a run, in units of its square at the peak."""
SAVES = 24
PLACES = {"warm-up": ("half of the steps", SAVES // 2), "cosine": ("the last step", SAVES)}
"""The observation at which each schedule is compared with the constant step."""


@dataclass(frozen=True)
class Schedules:
    """Label noise on z.(u² - v²) = y from a point at zero loss, with three schedules of the step size."""

    seeds: int
    """Number of runs with each setting."""
    sgd_step: float = 0.0025
    """Largest step size of SGD."""
    sgd_slow_time: float = 0.06
    """Slow time of the runs of SGD, the sum of the squared step sizes."""
    adam_step: float = 0.004
    """Largest step size of Adam."""
    adam_slow_time: float = 0.2
    """Slow time of the runs of Adam."""
    memory: float = 20.0
    """(1 - b2)/η² of Adam at the largest step size."""
    b1: float = 0.9
    """Momentum of Adam."""
    strength: float = 1.414
    """Size of the label noise."""
    unknowns: int = 20
    """Number of entries of u and of v."""
    equations: int = 10
    """Number of equations."""


class Schedule(eqx.Module):
    """peak * min(1, (k + 1)/warm) * (1 - fall (1 - cos(pi k/steps))/2) in step k."""

    peak: Float[Array, ""]
    warm: Float[Array, ""]
    fall: Float[Array, ""]
    steps: Float[Array, ""]

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Return the step size."""
        rise = jnp.minimum(1.0, (step + 1) / self.warm)
        return self.peak * rise * (1 - self.fall * (1 - jnp.cos(jnp.pi * step / self.steps)) / 2)


def schedule(name: str, peak: float, steps: int) -> Schedule:
    """Return a constant step size, a linear warm-up over half of the steps, or a cosine from the peak to zero."""
    warm, fall = {"constant": (1.0, 0.0), "warm-up": (steps / 2, 0.0), "cosine": (1.0, 1.0)}[name]
    return Schedule(*(jnp.asarray(x, float) for x in (peak, warm, fall, steps)))


def _run(parameters: Schedules, name: str, kind: str, key: Key[Array, ""]) -> Trajectory:
    p = parameters
    model = LinearModel.draw(
        jax.random.key(0), d=p.unknowns, n=p.equations, sparsity=3, law="boolean", dtype=jnp.result_type(float)
    )
    start = model.settle(model.start(0.8))
    noise = LabelNoise(model.problem, p.strength)
    adam = name == "Adam"
    peak, slow_time = (p.adam_step, p.adam_slow_time) if adam else (p.sgd_step, p.sgd_slow_time)
    # the constant step goes on for as long as the sum of the step sizes of the cosine
    longer = 4 / 3 if kind == "constant" else 1.0
    steps = SAVES * round(longer * slow_time / peak**2 / SHARES[kind] / SAVES)
    optimiser = Adam(b1=p.b1, b2=1 - p.memory * peak**2, bias_correction=False) if adam else SGD()
    state = {"m": trees.zeros_like(start), "v": second_moment(noise, start)} if adam else None
    return descend(
        noise, start, step_size=schedule(kind, peak, steps), steps=steps, every=steps // SAVES,
        observe={"trace": HessianTrace(model.problem)}, seeds=p.seeds, key=key, optimiser=optimiser,
        optimiser_state=state, progress=False,
    )  # fmt: skip


def _decreases(run: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Return the decrease of tr H at every observation, and its standard error."""
    decreases = run.observed["trace"][:, :1] - run.observed["trace"]
    return decreases.mean(axis=0), np.asarray(standard_error(decreases))


def _check(name: str, kind: str, run: Trajectory, constant: Trajectory) -> Check:
    """Compare a schedule with the constant step where the two clocks differ most."""
    place, index = PLACES[kind]
    (decrease, error), (base, base_error) = _decreases(run), _decreases(constant)
    expected = np.interp(run.slow_time[index], constant.slow_time, base)
    expected_error = np.interp(run.slow_time[index], constant.slow_time, base_error)
    rival = np.interp(run.time[index], constant.time, base)
    ratio = decrease[index] / expected
    return Check(
        f"{name}, {kind}, {place}: decrease of tr H / that of the constant step at equal slow time", float(ratio), 1.0,
        float(np.hypot(error[index], ratio * expected_error) / expected), Within(0.06, 0.15),
        alternative=float(rival / expected),
    )  # fmt: skip


def _measure(parameters: Schedules, key: Key[Array, ""]) -> Measurement:
    checks, runs = [], []
    for row, name in enumerate(OPTIMISERS):
        family = [
            _run(parameters, name, kind, jax.random.fold_in(key, len(SHARES) * row + column))
            for column, kind in enumerate(SHARES)
        ]
        checks += [_check(name, kind, run, family[0]) for kind, run in zip(PLACES, family[1:], strict=True)]
        runs.append(family)
    columns = [[(run.slow_time, run.time, run.observed["trace"].mean(axis=0)) for run in family] for family in runs]
    data = xarray.Dataset(
        {
            name: (("optimiser", "schedule", "index"), np.array(columns)[:, :, part])
            for part, name in enumerate(("slow_time", "time", "trace"))
        },
        coords={"optimiser": list(OPTIMISERS), "schedule": list(SHARES)},
    )
    diverged = sum(int(run.diverged.sum()) for family in runs for run in family)
    return Measurement(tuple(checks), data, parameters.seeds, diverged)


def _draw(measurement: Measurement, parameters: Schedules) -> "Figure":
    figure, panels = style.new_figure(4, width=3.4)
    for row, name in enumerate(OPTIMISERS):
        for column, (clock, label) in enumerate((("slow_time", "slow time, ∑ η²"), ("time", "time, ∑ η"))):
            axes = panels[2 * row + column]
            data = measurement.data.sel(optimiser=name)
            constant = data.sel(schedule="constant")
            style.theory(axes, constant[clock], constant.trace, "constant step")
            for kind, colour, marker in (("warm-up", "blue", "o"), ("cosine", "red", "s")):
                part = data.sel(schedule=kind)
                style.points(axes, part[clock], part.trace, None, kind, colour, marker=marker)
            axes.set(xlabel=label, ylabel="tr H", title=name)
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="schedules-are-clocks",
        paper="optimisers",
        place="Schedules",
        statement="Warm-up and cosine schedules move SGD and Adam with label noise along the manifold of minimisers as "
        "the constant step does: tr H is the same at equal slow time, the sum of the squared step sizes.",
        equation="tr H at ∑_k η_k² = τ does not depend on the schedule η_k",
        alternative="The clock is the time ∑ η_k, the sum of the step sizes.",
        rests_on=("adam-limit-metric", "network-follows-limit"),
        scales={"smoke": Schedules(16), "default": Schedules(128), "full": Schedules(1024)},
        measure=_measure,
        draw=_draw,
    ),
)
