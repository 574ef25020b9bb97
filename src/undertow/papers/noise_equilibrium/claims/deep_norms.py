"""Deep linear networks: noise equalises the norms of the middle layers; the data set those of the first and last."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.additive import noiseless
from undertow.noise.base import AbstractNoise
from undertow.noise.minibatch import Minibatch
from undertow.papers.noise_equilibrium.claims.deep_linear import printed_layers
from undertow.papers.noise_equilibrium.models.digits import digits
from undertow.papers.noise_equilibrium.models.linear_nets import (  # fmt: skip
    GaussianPairs,
    condensed,
    deep_loss,
    deep_start,
    loud_first,
    split_variance,
    squared_norms,
)
from undertow.problem import Problem
from undertow.symmetry.closed_forms import deep_linear_norms
from undertow.trajectory import Trajectory
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHI, INPUTS, LABELS = 0.6, 4.0, 2.0
"""Input variance is 4 * 0.6 in half of the coordinates and 4 * 1.4 in the others; label noise 2 * 5 in one, else 2."""
STARTS = {"equal": 0.0, "different": 0.3}
"""Standard deviation of the logarithm of the layers' factors at the start."""
LOOKS = 60
"""Number of observations of each run."""
EQUAL = 0.04
"""Norms that differ by less count as equal, because SGD fluctuates."""


@dataclass(frozen=True)
class GaussianData:
    """A deep linear network on fresh data y = x + eps, inputs of two variances, more noise in the first coordinate.

    The scale of the data changes the printed norms, not the correct ones: at this scale the printed ones are wrong by
    two fifths or more in every layer.
    """

    seeds: int
    """Number of runs for each kind of start."""
    steps: int
    """Number of steps of SGD; averages are over the last quarter."""
    layers: int = 5
    """Number of layers."""
    width: int = 10
    """Width of every layer, inputs and outputs included."""
    batch: int = 8
    """Samples per step."""
    step_size: float = 0.003
    """Step size of SGD."""


@dataclass(frozen=True)
class Digits:
    """A deep linear network from the principal components of handwritten digits to their labels."""

    seeds: int
    """Number of runs of SGD for each kind of start."""
    steps: int
    """Number of steps of SGD; averages are over the last quarter."""
    descent_seeds: int = 48
    """Number of runs of gradient descent, from different norms."""
    descent_steps: int = 3000
    """Number of steps of gradient descent."""
    layers: int = 5
    """Number of layers."""
    components: int = 20
    """Number of inputs."""
    width: int = 9
    """Width of the middle layers, the rank of the centred labels. Unused directions of wider layers do not move."""
    batch: int = 8
    """Samples per step."""
    step_size: float = 0.01
    """Step size of SGD and of gradient descent."""


@functools.cache
def _start(widths: tuple[int, ...], spread: float) -> Callable[[Key[Array, ""]], tuple[Array, ...]]:
    """Return the initialiser, the same object for the same sizes, so that runs share their compiled program."""
    return lambda key: deep_start(key, widths, spread)


def _run(
    noise: AbstractNoise,
    start: Callable[[Key[Array, ""]], PyTree],
    step_size: float,
    steps: int,
    seeds: int,
    key: Array,
) -> Trajectory:
    return descend(
        noise, start, step_size=step_size, steps=steps, key=key, observe={"norms": squared_norms},
        every=max(1, steps // LOOKS), seeds=seeds, lane_width=seeds, progress=False,
    )  # fmt: skip


def _late(run: Trajectory) -> np.ndarray:
    """Return the squared norms (seeds, layers), averaged over the last quarter of the run."""
    return run.observed["norms"][:, run.step > 0.75 * run.step[-1]].mean(axis=1)


def _spread(norms: np.ndarray) -> np.ndarray:
    """Return (largest - least)/mean of the squared norms of the middle layers, for every seed."""
    middle = norms[:, 1:-1]
    return (middle.max(axis=1) - middle.min(axis=1)) / middle.mean(axis=1)


def _measure(parameters: GaussianData, key: Key[Array, ""]) -> Measurement:
    n = parameters.width
    variances = INPUTS * np.asarray(split_variance(n, PHI)), LABELS * np.asarray(loud_first(n))
    law = GaussianPairs(*jax.device_put(variances))
    noise = Minibatch(law.population(deep_loss), parameters.batch)
    widths = (n,) * (parameters.layers + 1)
    inputs, labels = (np.diag(np.asarray(v, np.float64)) for v in (law.input_variance, law.noise_variance))
    product = np.eye(n)
    theory = np.array(deep_linear_norms(*jax.device_put((product, inputs, labels)), parameters.layers))
    printed = np.array([np.sum(w**2) for w in printed_layers(product, inputs, labels, parameters.layers, n)])
    checks, data, diverged = [], {}, 0
    for index, (name, spread) in enumerate(STARTS.items()):
        start, k = _start(widths, spread), jax.random.fold_in(key, index)
        run = _run(noise, start, parameters.step_size, parameters.steps, parameters.seeds, k)
        norms = _late(run)
        for layer in range(parameters.layers):
            value, error = statistics.mean(norms[:, layer] / theory[layer])
            what = f"{name} norms at the start: |W_{layer + 1}|² / theory"
            checks.append(
                Check(what, value, 1.0, error, Within(0.05, 0.04), alternative=printed[layer] / theory[layer])
            )
        value, error = statistics.median(
            _spread(norms)
        )  # the median, because a run that starts far away may not have arrived
        # gradient descent keeps the differences of norms
        kept = float(_spread(run.observed["norms"][:, 0]).mean()) if spread else None
        what = f"{name} norms at the start: relative spread of the norms of the middle layers"
        checks.append(Check(what, value, 0.0, error, Below(EQUAL), alternative=kept))
        data[name] = (("seed", "step", "layer"), run.observed["norms"])
        diverged += int(run.diverged.sum())
    data["theory"] = ("layer", theory)
    return Measurement(tuple(checks), xarray.Dataset(data, coords={"step": run.step}), parameters.seeds, diverged)


def _measure_digits(parameters: Digits, key: Key[Array, ""]) -> Measurement:
    p = parameters
    problem = Problem(deep_loss, digits(p.components))
    widths = (p.components, *(p.width,) * (p.layers - 1), problem.data[1].shape[1])
    checks, data = [], {}
    start, k = _start(widths, STARTS["different"]), jax.random.fold_in(key, len(STARTS))
    plain = _run(noiseless(condensed(problem)), start, p.step_size, p.descent_steps, p.descent_seeds, k)
    kept = _spread(_late(plain))
    data["GD_different"] = (("GD_seed", "GD_step", "layer"), plain.observed["norms"])
    diverged = int(plain.diverged.sum())
    for index, (name, spread) in enumerate(STARTS.items()):
        start, k = _start(widths, spread), jax.random.fold_in(key, index)
        run = _run(Minibatch(problem, p.batch), start, p.step_size, p.steps, p.seeds, k)
        # in logarithms, because gradient descent keeps spreads of different orders of magnitude
        value, error = statistics.mean(np.log1p(_spread(_late(run)) / EQUAL))
        what = f"SGD, {name} norms at the start: mean log(1 + spread of the middle layers/{EQUAL:g})"
        alternative = float(np.log1p(kept / EQUAL).mean()) if spread else None
        checks.insert(0, Check(what, value, 0.0, error, Below(math.log(2)), alternative=alternative))
        data[f"SGD_{name}"] = (("seed", "SGD_step", "layer"), run.observed["norms"])
        diverged += int(run.diverged.sum())
    value, error = statistics.share(kept > EQUAL)
    what = f"GD, different norms: share of runs with a spread above {EQUAL:g}"
    checks.append(Check(what, value, 1.0, error, Above(0.5), alternative=0.0, samples=math.inf))
    steps = {"SGD_step": run.step, "GD_step": plain.step}
    return Measurement(tuple(checks), xarray.Dataset(data, coords=steps), p.seeds, diverged)


COLOURS = ("red", "blue", "green", "purple", "grey")


def _paths(axes: "Axes", steps: np.ndarray, values: np.ndarray, title: str) -> None:
    """Draw the mean over seeds of every layer's squared norm."""
    for layer in range(values.shape[2]):
        each = values[:, ::3, layer]
        spread = standard_error(each)
        style.points(axes, steps[::3], each.mean(axis=0), spread, f"|W_{layer + 1}|²", COLOURS[layer % len(COLOURS)])
    axes.set(xlabel="steps", ylabel="squared norm", title=title)


def _draw(measurement: Measurement, parameters: GaussianData) -> "Figure":
    figure, panels = style.new_figure(len(STARTS), width=4.4)
    data = measurement.data
    for axes, name in zip(panels, STARTS, strict=True):
        _paths(axes, data.step.values, data[name].values, f"{name} norms at the start")
        for layer, value in enumerate(data.theory.values):
            axes.axhline(
                value, color=style.COLOURS[COLOURS[layer % len(COLOURS)]], lw=1, label=None if layer else "theory"
            )
    panels[1].legend()
    return figure


def _draw_digits(measurement: Measurement, parameters: Digits) -> "Figure":
    figure, panels = style.new_figure(3, width=3.8)
    data = measurement.data
    shown = (("SGD", "equal"), ("SGD", "different"), ("GD", "different"))
    for axes, (name, start) in zip(panels, shown, strict=True):
        _paths(axes, data[f"{name}_step"].values, data[f"{name}_{start}"].values, f"{name}, {start} norms at the start")
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="deep-norms",
        paper="noise_equilibrium",
        place="Theorem 5.4 and Figure 5",
        statement="SGD brings the middle layers of a deep linear network to a common norm and the first and last "
        "layer to norms set by the data, as the corrected theorem predicts, from orthogonal layers of equal or of "
        "different norms. (From Gaussian layers many runs lose a direction, which violates the full rank that the "
        "theorem assumes.)",
        equation="|W_i|² = β d,  β = (Tr S'/√(Tr Σ_x Tr Σ_ε))^(2/D),  1 < i < D",
        alternative="The layers end at the norms of Eq. (18) as printed.",
        rests_on=("deep-linear-norms",),
        controls=True,
        scales={
            "smoke": GaussianData(10, 22_000),
            "default": GaussianData(16, 60_000),
            "full": GaussianData(128, 120_000),
        },
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
    Claim(
        id="deep-norms-digits",
        paper="noise_equilibrium",
        place="Figure 5",
        statement="On handwritten digits the middle layers end with a common norm under SGD; gradient descent keeps "
        "the differences of the start.",
        equation="|W_2|² = ... = |W_(D-1)|²",
        alternative="SGD keeps the differences between the norms of the middle layers, as gradient descent does.",
        rests_on=("deep-norms",),
        controls=True,
        scales={
            "smoke": Digits(32, 20_000, descent_steps=1000, layers=4, batch=4),
            "default": Digits(32, 80_000),
            "full": Digits(128, 160_000),
        },
        measure=_measure_digits,
        draw=_draw_digits,
        accelerated=True,
    ),
)
