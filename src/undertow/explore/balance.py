"""Noise equilibrium of a two-layer network: noise moves the ratio of the layers to a predicted value."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from undertow.dynamics.average import average
from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.explore.instrument import Instrument, Observables, Settings, Slider
from undertow.explore.picture import Axis, Panel, Picture, Row, Series, runs_and_mean
from undertow.noise.minibatch import Minibatch
from undertow.optimisers.adaptive import AdamW
from undertow.optimisers.sgd import SGD
from undertow.papers.optimisers.models.rank_one import BALANCE, log_ratio, rank_one
from undertow.problem import Problem
from undertow.symmetry.equilibrium import equilibrium
from undertow.symmetry.flow import noether_flow

__all__ = ["BALANCE_OF_LAYERS", "BalanceResult", "compute", "draw"]

SAVES = 30
STEP_SIZES = {"SGD": 4.0, "AdamW": 1.0}
"""The step size over the value of the slider: a step of Adam is that of SGD over the size of the gradients."""
OPTIMISERS = {"SGD": SGD, "AdamW": AdamW}


@dataclass(frozen=True)
class BalanceResult:
    """log(|U|/|W|) and the charge of runs, beside the averaged flow, the Noether flow and the equilibrium."""

    optimiser: str
    steps: np.ndarray
    ratio: np.ndarray
    """log(|U|/|W|) of the runs that stayed finite (runs, times)."""
    flow: np.ndarray
    """The mean of log(|U|/|W|) by the averaged flow."""
    end: float
    """The predicted mean of log(|U|/|W|) in a long run."""
    charge: np.ndarray
    """(|U|^2 - |W|^2)/2 of the runs."""
    charge_flow: np.ndarray
    """The mean charge by the averaged flow."""
    relaxation: float
    """The relaxation time at the start, in steps."""
    diverged: int


@functools.cache
def _problem() -> tuple[Problem, dict]:
    return rank_one(jax.random.key(0))


def _charge(params: dict) -> jax.Array:
    return BALANCE.charge(params)


OBSERVE: Observables = {"ratio": log_ratio, "charge": _charge}


def compute(settings: Settings) -> BalanceResult:
    """Run SGD or AdamW from an unbalanced start, and solve the averaged flow and the equilibrium."""
    problem, minimiser = _problem()
    name, start_ratio = str(settings["optimiser"]), float(settings["start"])
    start = {"U": minimiser["U"] * jnp.exp(start_ratio / 2), "W": minimiser["W"] * jnp.exp(-start_ratio / 2)}
    noise = Minibatch(problem, 1)
    eta = STEP_SIZES[name] * float(settings["step_size"])
    optimiser = OPTIMISERS[name](weight_decay=float(settings["decay"]))
    every = int(settings["steps"]) // SAVES
    run = descend(
        noise, start, step_size=eta, steps=every * SAVES, every=every, optimiser=optimiser,
        seeds=int(settings["seeds"]), key=0, observe=OBSERVE, progress=False,
    )  # fmt: skip
    flow = average(
        noise, start, step_size=eta, time=eta * every * SAVES, observe=OBSERVE, num_saves=SAVES, estimate_error=False,
        optimiser=optimiser,
    )  # fmt: skip
    end = equilibrium(noise, start, BALANCE, step_size=eta, optimiser=optimiser)
    charge = noether_flow(noise, start, BALANCE, step_size=eta, optimiser=optimiser)
    finite = {key: values[~run.diverged] for key, values in run.observed.items()}
    return BalanceResult(
        name, run.step, finite["ratio"], flow.observed["mean_ratio"], float(end.expected(log_ratio)), finite["charge"],
        flow.observed["mean_charge"], float(charge.relaxation_steps), int(run.diverged.sum()),
    )  # fmt: skip


def draw(result: BalanceResult) -> Picture:
    """Draw log(|U|/|W|) and the charge over steps."""
    steps, last = result.steps / 1000, result.ratio[:, -1]
    ratio = Panel(
        "Ratio of the layers",
        Axis("steps / 1000"),
        Axis("log(|U| / |W|)"),
        (
            *runs_and_mean(result.optimiser, steps, result.ratio),
            Series("line", "averaged flow (theory)", "red", steps, result.flow),
            Series("dashed", "predicted end", "purple", steps[[0, -1]], np.full(2, result.end)),
        ),
    )
    charge = Panel(
        "Charge, which gradient flow conserves",
        Axis("steps / 1000"),
        Axis("(|U|² − |W|²) / 2"),
        (
            *runs_and_mean(result.optimiser, steps, result.charge),
            Series("line", "averaged flow (theory)", "red", steps, result.charge_flow),
            Series("dashed", "gradient flow", "green", steps[[0, -1]], np.full(2, result.charge[:, 0].mean())),
        ),
    )
    error = float(standard_error(last)) if len(last) > 1 else None
    rows = (
        Row("log(|U|/|W|) after the last step", float(result.flow[-1]), float(last.mean()), error),
        Row("log(|U|/|W|) at equilibrium", result.end, None),
        Row("relaxation time at the start, in steps", result.relaxation, None),
    )
    lost = (f"{result.diverged} runs diverged and are left out.",) if result.diverged else ()
    return Picture((ratio, charge), rows, lost)


CODE = """\
import jax, jax.numpy as jnp, undertow as ut
from undertow.papers.optimisers.models.rank_one import BALANCE, log_ratio, rank_one

jax.config.update("jax_enable_x64", True)
problem, minimiser = rank_one(jax.random.key(0))
start = {"U": minimiser["U"] * jnp.exp($start / 2), "W": minimiser["W"] * jnp.exp(-$start / 2)}
noise = ut.Minibatch(problem, 1)
optimiser = ut.$optimiser(weight_decay=$decay)
eta = {"SGD": 4.0, "AdamW": 1.0}["$optimiser"] * $step_size
steps = 30 * ($steps // 30)
run = ut.descend(noise, start, step_size=eta, steps=steps, optimiser=optimiser, seeds=$seeds, key=0,
                 observe={"ratio": log_ratio})
flow = ut.average(noise, start, step_size=eta, time=eta * steps, observe={"ratio": log_ratio}, optimiser=optimiser)
end = ut.equilibrium(noise, start, BALANCE, step_size=eta, optimiser=optimiser)
theory, simulation = float(flow.observed["mean_ratio"][-1]), float(run.observed["ratio"][~run.diverged, -1].mean())
print(f"log(|U|/|W|): averaged flow {theory:.3g}, mean of the runs {simulation:.3g}")
print(f"predicted end {float(end.expected(log_ratio)):.3g}")
"""

BALANCE_OF_LAYERS = Instrument(
    name="noise-equilibrium",
    title="Noise balances two layers",
    summary="The function U(W·x) does not change if U grows and W shrinks by the same factor, and gradient flow "
    "conserves the charge (|U|² − |W|²)/2. Noise does not: it moves the ratio of the layers to an equilibrium, which "
    "differs between AdamW and SGD. The step size of SGD is four times the value of the slider.",
    theory="theory/noise-equilibrium",
    sliders=(
        Slider("optimiser", "optimiser", ("SGD", "AdamW"), "SGD", ("SGD", "AdamW"), programs=("AdamW",)),
        Slider("step_size", "step size η", (0.001, 0.002, 0.003, 0.005, 0.007, 0.01), 0.005, (0.002, 0.005, 0.01)),
        Slider(
            "decay", "weight decay λ", (0.0, 0.001, 0.003, 0.01, 0.03), 0.003, (0.001, 0.003, 0.03), programs=(0.0,)
        ),
        Slider("start", "start, log(|U|/|W|)", (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5), 1.0, (-1.0, 1.0)),
        Slider("steps", "steps", (3000, 10000, 30000, 60000), 30000),
        Slider("seeds", "number of runs", (2, 4, 8, 16, 32, 64), 16, small_programs=(2, 4, 8, 32, 64)),
    ),
    compute=compute,
    draw=draw,
    code=CODE,
)
