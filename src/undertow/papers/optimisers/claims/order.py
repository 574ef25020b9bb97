"""The error of the averaged flow in the step size, over a fixed slow time, on three small models."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.average import average
from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.manifold.averaged import Observe
from undertow.noise.label import LabelNoise
from undertow.papers.optimisers.models.networks import HessianTrace, product, small_tanh_net, squares
from undertow.problem import Regression
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = {"u v = 1": product, "z.(u² - v²) = y": squares, "tanh network": small_tanh_net}
SHARPNESS = np.array([0.6, 0.3, 0.15])
"""Step sizes times the largest curvature at the start."""
TOLERANCE = 1e-8
"""Error of the solver per step, far below the errors that are measured."""


@dataclass(frozen=True)
class Order:
    """Label-noise SGD from zero loss on three small models, at three step sizes, over the same slow time."""

    seeds: int
    """Number of runs at each step size."""
    strength: float = 0.25
    """Size of the label noise, small, so that the fluctuations are small at every step size."""
    slow_time: float = 8.0
    """Length of each run in slow time, steps * step_size^2."""


@eqx.filter_jit
def _largest_curvature(problem: Regression, params: Array) -> Array:
    return jnp.linalg.eigvalsh(jax.hessian(problem.loss)(params))[-1]


def _errors(problem: Regression, start: Array, parameters: Order, key: Key[Array, ""]) -> tuple[np.ndarray, int]:
    """Return the errors of both closures, and SGD's own, at each step size, relative to the change of tr H."""
    noise = LabelNoise(problem, parameters.strength)
    observe: Observe = {"trace": HessianTrace(problem)}
    sharpest = float(_largest_curvature(problem, start))
    rows, diverged = [], 0
    for index, eta in enumerate(SHARPNESS / sharpest):
        steps = round(parameters.slow_time / eta**2)
        run = descend(
            noise, start, step_size=eta, steps=steps, every=steps, observe=observe, seeds=parameters.seeds,
            key=jax.random.fold_in(key, index), progress=False,
        )  # fmt: skip
        diverged += int(run.diverged.sum())
        traces = run.observed["trace"][~run.diverged]
        mean, error = statistics.mean(traces[:, -1])
        solve = partial(
            average, noise, start, step_size=eta, time=steps * eta, observe=observe, num_saves=1, tolerance=TOLERANCE,
            estimate_error=False,
        )  # fmt: skip
        flow, rival = solve().observed["mean_trace"], solve(closure="small_step").observed["mean_trace"]
        change = mean - traces[0, 0]
        rows.append(((flow[-1] - mean) / change, (rival[-1] - mean) / change, abs(error / change)))
    return np.array(rows).T, diverged


def _measure(parameters: Order, key: Key[Array, ""]) -> Measurement:
    checks, tables, diverged = [], [], 0
    # the coefficient a of errors a s + b s^2 at the three step sizes s
    fit = np.linalg.pinv(np.stack([SHARPNESS, SHARPNESS**2], axis=1))[0]
    logarithms = np.log(SHARPNESS) - np.log(SHARPNESS).mean()
    for index, (name, model) in enumerate(MODELS.items()):
        (flow, rival, error), lost = _errors(*model(), parameters, jax.random.fold_in(key, index))
        tables.append((flow, rival, error))
        diverged += lost
        first_order = fit @ rival
        slopes = logarithms / (logarithms @ logarithms)
        checks += [
            Check(f"{name}: first-order coefficient of the error, averaged flow / small steps",
                  fit @ flow / first_order, 0.0, float(np.linalg.norm(fit * error) / abs(first_order)),
                  Within(0.05, 0.5), alternative=1.0),
            Check(f"{name}: order of the error of the flow for small steps", slopes @ np.log(np.abs(rival)), 1.0,
                  float(np.linalg.norm(slopes * error / rival)), Within(0.15, 0.5), alternative=2.0),
        ]  # fmt: skip
    names = ("flow", "rival", "error")
    columns = (np.stack(column) for column in zip(*tables, strict=True))
    data = xarray.Dataset(
        {name: (("model", "sharpness"), column) for name, column in zip(names, columns, strict=True)},
        coords={"model": list(MODELS), "sharpness": SHARPNESS},
    )
    return Measurement(tuple(checks), data, parameters.seeds, diverged)


def _draw(measurement: Measurement, parameters: Order) -> "Figure":
    figure, panels = style.new_figure(len(MODELS), width=3.6)
    ends = np.array([0.0, SHARPNESS.max()])
    for axes, name in zip(panels, MODELS, strict=True):
        data = measurement.data.sel(model=name)
        style.theory(axes, ends, 0 * ends, "no error")
        style.points(axes, data.sharpness, 100 * data.flow, 100 * data.error, "averaged flow − SGD")
        label = "flow of L + (ηδ²/4) tr H − SGD"
        style.points(axes, data.sharpness, 100 * data.rival, 100 * data.error, label, "red", marker="s")
        axes.set(xlabel="step size × largest curvature", ylabel="error of tr H, % of its change", title=name)
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="averaged-flow-order",
        paper="optimisers",
        place="Order in the step size",
        statement="Over a fixed slow time the flow for small steps has an error of first order in the step size. For "
        "weak noise the averaged flow has no such error, on three models: u v = 1, two equations in u² - v², and a "
        "tanh network.",
        equation="error = a η + O(η²),  a of the averaged flow / a of the flow for small steps → 0 for weak noise",
        alternative="The averaged flow has the same first-order error.",
        rests_on=("averaged-flow-trace",),
        scales={"smoke": Order(512), "default": Order(16384), "full": Order(131072)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
        long=True,
    ),
)
