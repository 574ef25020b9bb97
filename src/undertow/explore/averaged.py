"""The averaged flow on a network with one input: the fitted function and the trace of the Hessian."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow.dynamics.average import average
from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.explore.instrument import Instrument, Observables, Settings, Slider
from undertow.explore.picture import Axis, Panel, Picture, Row, Series, runs_and_mean
from undertow.noise.label import LabelNoise
from undertow.papers.optimisers.models.networks import HessianTrace, sine_net
from undertow.problem import Regression

__all__ = ["AVERAGED", "AveragedResult", "compute", "draw"]

WIDTH, POINTS, SAVES = 20, 10, 30
INPUTS = np.linspace(-2.6, 2.6, 53)
"""Inputs at which the function is drawn."""


@dataclass(frozen=True)
class AveragedResult:
    """The fitted functions at the end, and tr H over time."""

    time: np.ndarray
    trace: np.ndarray
    """tr H of the runs that stayed finite (runs, times)."""
    trace_flow: np.ndarray
    """The mean of tr H by the averaged flow."""
    functions: np.ndarray
    """The functions of the runs at the end, at `INPUTS` (runs, inputs)."""
    function_flow: np.ndarray
    """The mean of the function by the averaged flow."""
    function_start: np.ndarray
    data: tuple[np.ndarray, np.ndarray]
    valid: bool
    """Whether the small parameters of the theory are small."""
    diverged: int


@functools.cache
def _network() -> tuple[Regression, dict]:
    return sine_net(jax.random.key(0), width=WIDTH, n=POINTS)


def _function(params: PyTree) -> Float[Array, " inputs"]:
    return jax.vmap(_network()[0].predict, (None, 0))(params, jnp.asarray(INPUTS))


@functools.cache
def _observables() -> Observables:
    return {"trace": HessianTrace(_network()[0]), "function": _function}


def compute(settings: Settings) -> AveragedResult:
    """Run SGD with label noise from a random start, and solve the averaged flow."""
    problem, start = _network()
    eta = float(settings["step_size"])
    noise = LabelNoise(problem, float(settings["noise"]), batch_size=int(settings["batch_size"]))
    every = round(float(settings["time"]) / eta / SAVES)
    length = eta * every * SAVES
    run = descend(
        noise, start, step_size=eta, steps=every * SAVES, every=every, seeds=int(settings["seeds"]), key=0,
        observe=_observables(), progress=False,
    )  # fmt: skip
    flow = average(
        noise, start, step_size=eta, time=length, observe=_observables(), num_saves=SAVES, estimate_error=False
    )
    finite = {name: values[~run.diverged] for name, values in run.observed.items()}
    inputs, targets = (np.asarray(x) for x in problem.data)
    return AveragedResult(
        run.time, finite["trace"], flow.observed["mean_trace"], finite["function"][:, -1],
        flow.observed["mean_function"][-1], flow.observed["function"][0], (inputs, targets),
        flow.regime is None or flow.regime.valid is not False, int(run.diverged.sum()),
    )  # fmt: skip


def draw(result: AveragedResult) -> Picture:
    """Draw the fitted functions and tr H."""
    last = result.trace[:, -1]
    fitted = Panel(
        "The function at the end",
        Axis("input x"),
        Axis("output"),
        (
            Series("curves", "SGD, single runs", "blue", INPUTS, result.functions[:12]),
            Series("dashed", "at the start", "grey", INPUTS, result.function_start),
            Series("line", "averaged flow (theory)", "red", INPUTS, result.function_flow),
            Series("dots", "data, sin 2x", "purple", *result.data),
        ),
    )
    trace = Panel(
        "Sharpness",
        Axis("time, steps · η"),
        Axis("trace of the Hessian, tr H"),
        (
            *runs_and_mean("SGD", result.time, result.trace),
            Series("line", "averaged flow (theory)", "red", result.time, result.trace_flow),
        ),
    )
    error = float(standard_error(last)) if len(last) > 1 else None
    rows = (
        Row("tr H at the end", float(result.trace_flow[-1]), float(last.mean()), error),
        Row("tr H at the start", float(result.trace_flow[0]), float(result.trace[:, 0].mean())),
    )
    notes = (f"{result.diverged} runs diverged and are left out.",) if result.diverged else ()
    if not result.valid:
        notes += ("The small parameters of the theory are not small at this setting.",)
    return Picture((fitted, trace), rows, notes)


CODE = """\
import jax, undertow as ut
from undertow.papers.optimisers.models.networks import HessianTrace, sine_net

jax.config.update("jax_enable_x64", True)
problem, start = sine_net(jax.random.key(0), width=20, n=10)
noise = ut.LabelNoise(problem, $noise, batch_size=$batch_size)
steps, observe = 30 * round($time / $step_size / 30), {"trace": HessianTrace(problem)}
run = ut.descend(noise, start, step_size=$step_size, steps=steps, seeds=$seeds, key=0, observe=observe)
flow = ut.average(noise, start, step_size=$step_size, time=$step_size * steps, observe=observe, num_saves=30,
                  estimate_error=False)
theory, simulation = float(flow.observed["mean_trace"][-1]), float(run.observed["trace"][~run.diverged, -1].mean())
print(f"tr H at the end: averaged flow {theory:.4g}, mean of SGD {simulation:.4g}")
"""

AVERAGED = Instrument(
    name="averaged-flow",
    title="Noise flattens a network",
    summary="A tanh layer of 20 units fits 10 points of sin 2x. Label noise continues to change it after it fits: tr "
    "H falls. The averaged flow predicts the mean of SGD at this step size from the first step on, in one solution.",
    theory="theory/averaged-flow",
    sliders=(
        Slider("step_size", "step size η", (0.01, 0.015, 0.02, 0.03, 0.04, 0.05), 0.03, (0.01, 0.03, 0.05)),
        Slider("noise", "label noise δ", (0.0, 0.25, 0.5, 0.75, 1.0, 1.25), 1.0, (0.5, 1.0)),
        Slider("time", "time, steps · η", (25, 50, 100, 200, 400), 200, (25, 100, 200, 400)),
        Slider("batch_size", "batch size", (1, 2, 5), 1, (1, 5), programs=(2, 5)),
        Slider("seeds", "number of runs", (2, 4, 8, 16, 32, 64), 16, small_programs=(2, 4, 8, 32, 64)),
    ),
    compute=compute,
    draw=draw,
    code=CODE,
)
