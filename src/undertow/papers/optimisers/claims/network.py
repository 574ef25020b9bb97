"""An ill-conditioned network from a random start: trace of the Hessian and mean loss of SGD at a finite step."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.average import average
from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.manifold.averaged import Observe
from undertow.noise.label import LabelNoise
from undertow.papers.optimisers.models.networks import HessianTrace, sine_net
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEP_SIZES = (0.04, 0.02, 0.01)
SAVES = 6


@dataclass(frozen=True)
class Sine:
    """Label-noise SGD on a tanh layer of width 40 that fits sin(2x) at 30 points, from a random start."""

    seeds: int
    """Number of runs at each step size."""
    time: float = 300.0
    """Length of each run, steps * step_size."""
    strength: float = 1.0
    """Size of the label noise."""
    start: int = 0
    """Seed of the random start."""


def _measure_trace(parameters: Sine, key: Key[Array, ""]) -> Measurement:
    p = parameters
    problem, start = sine_net(jax.random.key(p.start))
    noise = LabelNoise(problem, p.strength)
    observe: Observe = {"trace": HessianTrace(problem)}
    checks, diverged, paths = [], 0, []
    for index, eta in enumerate(STEP_SIZES):
        steps = round(p.time / eta)
        run = descend(
            noise, start, step_size=eta, steps=steps, every=steps // SAVES, observe=observe, seeds=p.seeds,
            key=jax.random.fold_in(key, index), progress=False,
        )  # fmt: skip
        diverged += int(run.diverged.sum())
        solve = partial(average, noise, start, step_size=eta, time=p.time, observe=observe, num_saves=SAVES)
        traces = run.observed["trace"][~run.diverged]
        predicted, rival = solve().observed["mean_trace"], solve(closure="small_step").observed["mean_trace"]
        value, error = statistics.mean(traces[:, -1] / predicted[-1])
        checks.append(
            Check(f"step size {eta}: mean tr H of SGD at the end / averaged flow", value, 1.0, error,
                  Within(0.01, 0.02), alternative=rival[-1] / predicted[-1])
        )  # fmt: skip
        paths.append((traces.mean(axis=0), traces.std(axis=0, ddof=1) / len(traces) ** 0.5, predicted, rival))
    columns = (np.stack(column) for column in zip(*paths, strict=True))
    data = xarray.Dataset(
        {name: (("step_size", "time"), c) for name, c in zip(("sgd", "error", "flow", "rival"), columns, strict=True)},
        coords={"step_size": list(STEP_SIZES), "time": np.linspace(0, p.time, SAVES + 1)},
    )
    return Measurement(tuple(checks), data, p.seeds, diverged)


def _draw_trace(measurement: Measurement, parameters: Sine) -> "Figure":
    figure, panels = style.new_figure(len(STEP_SIZES), width=3.6)
    for axes, eta in zip(panels, STEP_SIZES, strict=True):
        data = measurement.data.sel(step_size=eta)
        style.theory(axes, data.time, data.flow, "averaged flow")
        style.theory(axes, data.time, data.rival, "flow of L + (ηδ²/4) tr H", "red")
        style.points(axes, data.time, data.sgd, data.error, "label-noise SGD")
        axes.set(xlabel="time, steps × step size", ylabel="tr H", title=f"step size {eta}", ylim=(0, None))
    panels[0].legend()
    return figure


def _measure_loss(parameters: Sine, key: Key[Array, ""]) -> Measurement:
    """Compare the loss, averaged over seeds and over the steps of a window, with the prediction over that window."""
    p, fine = parameters, 4
    problem, start = sine_net(jax.random.key(p.start))
    noise = LabelNoise(problem, p.strength)
    checks, diverged, paths = [], 0, []
    for index, eta in enumerate(STEP_SIZES[:2]):
        steps = round(p.time / eta)
        run = descend(
            noise, start, step_size=eta, steps=steps, every=steps // SAVES, average={"loss": problem.loss},
            seeds=p.seeds, key=jax.random.fold_in(key, index), progress=False,
        )  # fmt: skip
        diverged += int(run.diverged.sum())
        flow = average(noise, start, step_size=eta, time=p.time, num_saves=fine * SAVES, estimate_error=False)
        windowed = lambda values: np.array(
            [np.trapezoid(values[fine * k : fine * (k + 1) + 1], dx=1 / fine) for k in range(SAVES)]
        )
        predicted, at_mean = windowed(flow.observed["mean_loss"]), windowed(flow.observed["loss"])
        losses = run.observed["loss"][~run.diverged][:, 1:]
        value, error = statistics.mean((losses[:, 1:] / predicted[None, 1:]).mean(axis=1))
        checks.append(
            Check(f"step size {eta}: mean loss of SGD / loss at the mean plus (η/2) tr(HX)", value, 1.0, error,
                  Within(0.05, 0.1), alternative=float((at_mean[1:] / predicted[1:]).mean()))
        )  # fmt: skip
        paths.append((losses.mean(axis=0), losses.std(axis=0, ddof=1) / len(losses) ** 0.5, predicted, at_mean))
    columns = (np.stack(column) for column in zip(*paths, strict=True))
    names = ("sgd", "error", "flow", "at_mean")
    data = xarray.Dataset(
        {name: (("step_size", "time"), c) for name, c in zip(names, columns, strict=True)},
        coords={"step_size": list(STEP_SIZES[:2]), "time": (np.arange(SAVES) + 0.5) * p.time / SAVES},
    )
    note = "The first window has the fast fall from the random start; the checks are about the later ones."
    return Measurement(tuple(checks), data, p.seeds, diverged, note)


def _draw_loss(measurement: Measurement, parameters: Sine) -> "Figure":
    figure, panels = style.new_figure(2, width=4.2)
    for axes, eta in zip(panels, STEP_SIZES[:2], strict=True):
        data = measurement.data.sel(step_size=eta)
        style.theory(axes, data.time, data.flow, "loss at the mean + (η/2) tr(HX)")
        style.theory(axes, data.time, data.at_mean, "loss at the mean", "red")
        style.points(axes, data.time, data.sgd, data.error, "mean loss of SGD")
        axes.set(xlabel="time, steps × step size", ylabel="loss, averaged over a window", title=f"step size {eta}")
        axes.set_ylim(0, None)
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="averaged-flow-trace",
        paper="optimisers",
        place="Mean motion",
        statement="On an ill-conditioned network, from a random start, the mean trace of the Hessian of label-noise "
        "SGD at a finite step follows the averaged flow within 1 %.",
        equation="dθ/dt = (1 + (η/2) H) F,  F = -∇L - (η/2) d³L[X],  E f = f(θ) + (η/2) tr(f'' X)",
        alternative="SGD follows the flow of L + (ηδ²/4) tr H, the limit of small steps.",
        rests_on=("batch-curvatures",),
        scales={"smoke": Sine(96), "default": Sine(256), "full": Sine(1024)},
        measure=_measure_trace,
        draw=_draw_trace,
    ),
    Claim(
        id="excess-loss",
        paper="optimisers",
        place="Observables",
        statement="The mean loss of label-noise SGD on an ill-conditioned network is the loss at the mean plus the "
        "excess (η/2) tr(HX) of its fluctuations.",
        equation="E L = L(θ) + (η/2) tr(HX)",
        alternative="The mean loss is the loss at the mean.",
        rests_on=("averaged-flow-trace",),
        scales={"smoke": Sine(16), "default": Sine(128), "full": Sine(1024)},
        measure=_measure_loss,
        draw=_draw_loss,
    ),
)
