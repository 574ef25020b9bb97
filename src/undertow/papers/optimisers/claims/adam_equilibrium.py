"""Equilibria of Adam, AdamW and RMSProp on the orbit of a rescaling, against long runs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.figures import style
from undertow.optimisers.adaptive import Adam, AdamW, RMSProp
from undertow.optimisers.sgd import SGD
from undertow.papers.optimisers._equilibria import LongRun, long_run, predicted
from undertow.papers.optimisers.models.rank_one import rank_one
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FREEDOM = {"normal data": 0.0, "heavier tails": 5.0}
"""Degrees of freedom of Student's t distribution of the data; 0 for the normal distribution."""
DECAYS = (0.001, 0.004, 0.008, 0.016)
MEMORIES = (0.9999, 0.999)
STEP_SIZES = np.array([0.032, 0.016, 0.008])


@dataclass(frozen=True)
class LongRuns:
    """Runs from the minimiser with |U| = |W|, on two data sets of 64 samples, with batches of one sample."""

    seeds: int
    """Number of runs in each setting."""
    steps: int = 400_000
    """Number of steps; the second half is averaged."""
    step_size: float = 0.008
    """Step size η."""
    data: int = 1
    """Seed of the data."""


FULL = LongRuns(64, steps=4_000_000, step_size=0.004)


@dataclass(frozen=True)
class Memories:
    """RMSProp without and with a short memory of v, on data with heavier tails."""

    seeds: int
    """Number of runs with each memory."""
    steps: int = 1_000_000
    """Number of steps; the second half is averaged."""
    step_size: float = 0.004
    """Step size η."""
    data: int = 1
    """Seed of the data."""


@dataclass(frozen=True)
class StepSizes:
    """AdamW at three step sizes η with weight decay λ = η and 1 - b2 = 1.5 η², on data with heavier tails."""

    seeds: int
    """Number of runs at each step size."""
    length: float = 60.0
    """Number of steps times η²; the second half is averaged."""
    data: int = 0
    """Seed of the data."""


def _equilibria(parameters: LongRuns, key: Key[Array, ""]) -> Measurement:
    p, checks, runs = parameters, [], []
    for index, (name, freedom) in enumerate(FREEDOM.items()):
        system = rank_one(jax.random.key(p.data), freedom=freedom)
        optimiser = Adam(b2=0.9999)
        run = long_run(
            *system, optimiser, step_size=p.step_size, steps=p.steps, seeds=p.seeds, key=jax.random.fold_in(key, index)
        )
        end, _ = predicted(*system, optimiser, step_size=p.step_size)
        sgd, _ = predicted(*system, SGD(), step_size=p.step_size)
        checks.append(
            Check(f"{name}: log(|U|/|W|) under Adam", run.mean, end, run.error, Within(0.01, 0.1), alternative=sgd)
        )
        runs.append(run)
    return _measurement(checks, runs, p.seeds)


def _draw_equilibria(measurement: Measurement, parameters: LongRuns) -> "Figure":
    figure, (axes,) = style.new_figure(height=3.8)
    kinds = zip(FREEDOM, measurement.checks, measurement.data.path.values, ("blue", "green"), "os", strict=True)
    for name, check, (steps, means, errors), colour, marker in kinds:
        ends = [0, steps[-1] / 1000]
        style.theory(axes, ends, [check.predicted] * 2, f"{name}: equilibrium of Adam", colour)
        axes.plot(ends, [check.alternative] * 2, "--", color=style.COLOURS[colour], lw=1.4, label="equilibrium of SGD")
        style.points(axes, steps / 1000, means, errors, "runs of Adam", colour, marker)
    axes.set(xlabel="steps, in thousands", ylabel="log(|U|/|W|)")
    axes.legend()
    return figure


def _decays(parameters: LongRuns, key: Key[Array, ""]) -> Measurement:
    p, checks, runs = parameters, [], []
    system = rank_one(jax.random.key(p.data))
    for index, decay in enumerate(DECAYS):
        optimiser = AdamW(b2=0.9999, weight_decay=decay)
        run = long_run(
            *system, optimiser, step_size=p.step_size, steps=p.steps, seeds=p.seeds, key=jax.random.fold_in(key, index)
        )
        end, _ = predicted(*system, optimiser, step_size=p.step_size)
        sgd, _ = predicted(*system, SGD(weight_decay=decay), step_size=p.step_size)
        checks.append(
            Check(f"λ = {decay:g}: log(|U|/|W|) under AdamW", run.mean, end, run.error, Within(0.01, 0.1),
                  alternative=sgd)
        )  # fmt: skip
        runs.append(run)
    return _measurement(checks, runs, p.seeds)


def _memory(parameters: Memories, key: Key[Array, ""]) -> Measurement:
    p, runs, ends = parameters, [], []
    system = rank_one(jax.random.key(p.data), freedom=FREEDOM["heavier tails"])
    for index, b2 in enumerate(MEMORIES):
        optimiser = RMSProp(b2=b2)
        runs.append(long_run(*system, optimiser, step_size=p.step_size, steps=p.steps, seeds=p.seeds,
                             key=jax.random.fold_in(key, index)))  # fmt: skip
        ends.append(predicted(*system, optimiser, step_size=p.step_size)[0])
    checks = (
        Check("change of log(|U|/|W|) from b2 = 0.9999 to b2 = 0.999", runs[1].mean - runs[0].mean, ends[1] - ends[0],
              float(np.hypot(runs[0].error, runs[1].error)), Within(0.01, 0.03), alternative=0.0),
        # without dependence on b2 both runs would end at the same place
        *(Check(f"b2 = {b2:g}: log(|U|/|W|)", run.mean, end, run.error, Within(0.01, 0.03), alternative=other)
          for b2, run, end, other in zip(MEMORIES, runs, ends, ends[::-1], strict=True)),
    )  # fmt: skip
    return _measurement(checks, runs, p.seeds)


def _measurement(checks: list[Check] | tuple[Check, ...], runs: list[LongRun], seeds: int) -> Measurement:
    columns = {name: [getattr(run, name) for run in runs] for name in ("mean", "error")}
    paths = {"path": (("setting", "row", "look"), np.array([run.path for run in runs]))}
    data = xarray.Dataset({name: ("setting", values) for name, values in columns.items()} | paths)
    return Measurement(tuple(checks), data, seeds, sum(run.diverged for run in runs))


def _draw_decays(measurement: Measurement, parameters: LongRuns) -> "Figure":
    figure, (axes,) = style.new_figure()
    checks = measurement.checks
    style.theory(axes, DECAYS, [check.predicted for check in checks], "equilibrium of AdamW")
    style.theory(axes, DECAYS, [check.alternative for check in checks], "equilibrium of SGD, same decay", "red")
    style.points(axes, DECAYS, [c.measured for c in checks], [c.uncertainty for c in checks], "AdamW")
    axes.set(xlabel="weight decay λ", ylabel="log(|U|/|W|)", xscale="log")
    axes.legend()
    return figure


def _draw_memory(measurement: Measurement, parameters: Memories) -> "Figure":
    figure, (axes,) = style.new_figure()
    checks, forgotten = measurement.checks[1:], 1 - np.array(MEMORIES)
    style.theory(axes, forgotten, [check.predicted for check in checks], "with the memory of v")
    style.theory(axes, forgotten, [checks[0].predicted] * len(checks), "the same for every b2", "red")
    style.points(axes, forgotten, [c.measured for c in checks], [c.uncertainty for c in checks], "RMSProp")
    axes.set(xlabel="1 − b2, per step", ylabel="log(|U|/|W|)", xscale="log")
    axes.legend()
    return figure


def _order(parameters: StepSizes, key: Key[Array, ""]) -> Measurement:
    p, rows, diverged = parameters, [], 0
    system = rank_one(jax.random.key(p.data), freedom=FREEDOM["heavier tails"])
    for index, eta in enumerate(STEP_SIZES):
        optimiser = AdamW(b2=1 - 1.5 * eta**2, weight_decay=eta)
        run = long_run(
            *system, optimiser, step_size=eta, steps=round(p.length / eta**2), seeds=p.seeds,
            key=jax.random.fold_in(key, index),
        )  # fmt: skip
        leading, _ = predicted(*system, optimiser, step_size=eta, corrected=False)
        corrected, _ = predicted(*system, optimiser, step_size=eta)
        rows.append((leading - run.mean, corrected - run.mean, run.error))
        diverged += run.diverged
    leading, corrected, error = np.array(rows).T
    # the coefficient a of errors a eta + b eta^2
    fit = np.linalg.pinv(np.stack([STEP_SIZES, STEP_SIZES**2], axis=1))[0]
    checks = (
        Check("first-order coefficient of the error, corrected / leading", fit @ corrected / (fit @ leading), 0.0,
              float(np.linalg.norm(fit * error) / abs(fit @ leading)), Within(0.1, 0.5), alternative=1.0),
        Check("order of the error of the leading prediction, from the two smallest steps",
              np.log2(np.abs(leading[-2] / leading[-1])), 1.0,
              float(np.linalg.norm(error[-2:] / leading[-2:]) / np.log(2)), Within(0.15, 0.5), alternative=2.0),
    )  # fmt: skip
    columns = {"leading": leading, "corrected": corrected, "error": error}
    data = xarray.Dataset({k: ("step_size", v) for k, v in columns.items()}, coords={"step_size": STEP_SIZES})
    return Measurement(checks, data, p.seeds, diverged)


def _draw_order(measurement: Measurement, parameters: StepSizes) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    ends = np.array([0.0, STEP_SIZES.max()])
    style.theory(axes, ends, 0 * ends, "no error")
    style.points(axes, data.step_size, data.corrected, data.error, "with fluctuations − AdamW")
    style.points(axes, data.step_size, data.leading, data.error, "leading order − AdamW", "red", marker="s")
    axes.set(xlabel="step size η", ylabel="error of log(|U|/|W|)")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="adam-equilibrium",
        paper="optimisers",
        place="Equilibrium of Adam",
        statement="On the orbit of a rescaling, Adam goes to the point with the least sum of standard deviations of "
        "the gradient noise, with a correction for fluctuations, and not to the equilibrium of SGD.",
        equation="min over the orbit of ∑_i √Σ_ii,  e^(2s) = b₊/b₋,  b = ∑ √v on each side",
        alternative="Adam goes to the equilibrium of SGD, the least sum of variances.",
        rests_on=("metric-charge-step",),
        scales={"smoke": LongRuns(16, 200_000), "default": LongRuns(64), "full": FULL},
        measure=_equilibria,
        draw=_draw_equilibria,
    ),
    Claim(
        id="adamw-equilibrium",
        paper="optimisers",
        place="Equilibrium of AdamW",
        statement="With decoupled weight decay the equilibrium on the orbit of a rescaling is a closed form of noise "
        "and weights in the metric of AdamW, for four decays.",
        equation="e^(2s) = (λ a₋ + (η/2) b₊)/(λ a₊ + (η/2) b₋),  a = ∑ √v θ²,  b = ∑ √v on each side",
        alternative="AdamW goes to the equilibrium of SGD with the same weight decay.",
        rests_on=("adam-equilibrium",),
        scales={"smoke": LongRuns(16, 200_000), "default": LongRuns(64), "full": FULL},
        measure=_decays,
        draw=_draw_decays,
    ),
    Claim(
        id="metric-memory",
        paper="optimisers",
        place="Finite memory of v",
        statement="With a shorter memory of v the equilibrium of RMSProp moves, because v follows the fluctuations of "
        "the params in part. The move is predicted from the curvature and the third moments of the noise.",
        equation="(1 - b₂) ∑_i A_i θ_i/(2√v_i) E[x_i (g_i² - v_i)],  E[x v_i] = (1 - b₂) B (e_i - η S T_i)",
        alternative="The equilibrium does not depend on b₂.",
        rests_on=("adam-equilibrium",),
        scales={"smoke": Memories(16, 500_000), "default": Memories(64), "full": Memories(64, steps=8_000_000)},
        measure=_memory,
        draw=_draw_memory,
    ),
    Claim(
        id="adam-equilibrium-order",
        paper="optimisers",
        place="Order of the equilibrium in the step size",
        statement="The least sum of standard deviations plus decay predicts AdamW with an error of first order in the "
        "step size. The fluctuations of params, metric and momentum explain this error.",
        equation="error = a η + O(η²),  a with fluctuations / a without → 0",
        alternative="The fluctuations do not change the first-order error.",
        rests_on=("adamw-equilibrium",),
        scales={"smoke": StepSizes(32), "default": StepSizes(256), "full": StepSizes(256, length=400.0)},
        measure=_order,
        draw=_draw_order,
    ),
)
