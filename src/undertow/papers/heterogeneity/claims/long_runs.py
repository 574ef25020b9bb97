"""Long runs of HeteroSGD, which does not converge: measurement noise excites the spurious signal in bursts."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.sensing.bursts import burst_exponent
from undertow.sensing.growth import scalar_map, tail_exponent
from undertow.sensing.laws import two_point
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BURST = 0.5
"""A spurious signal above this is a burst."""
FILTERED = 0.1
"""A spurious signal below this has been filtered out."""


@dataclass(frozen=True)
class Long:
    """HeteroSGD far beyond the step at which it has found the invariant matrix."""

    seeds: int
    """Number of runs."""
    steps: int = 4000
    """Number of steps."""
    stop: int = 200
    """Step of the early stop."""
    spread: float = 10.0
    """M of the spurious law 1 ± M."""
    d: int = 20
    """Dimension of the matrices."""
    m: int = 1600
    """Measurements per step."""
    step_size: float = 0.05
    """Step size η of the paper."""
    every: int = 5
    """Steps between two observations."""


@dataclass(frozen=True)
class Tail:
    """The scalar map with additive noise far below its saturation, so that the power law spans decades."""

    runs: int
    """Number of independent runs."""
    steps: int = 4000
    """Number of steps."""
    spread: float = 8.0
    """M of the law 1 ± M."""
    step_size: float = 0.05
    """Step size η."""
    floor: float = 1e-12
    """Standard deviation of the Gaussian that is added at each step."""
    low: float = 1e-10
    """Lower end of the range of |q| over which the power law is fitted."""
    high: float = 1e-6
    """Upper end of that range."""


def _measure_bursts(parameters: Long, key: Key[Array, ""]) -> Measurement:
    p = parameters
    sensing = MatrixSensing(p.d, p.m, two_point(1.0, p.spread), dtype=jnp.float32)
    run = descend(
        sensing, sensing.start(1e-3), step_size=p.step_size, steps=p.steps, key=key, seeds=p.seeds, every=p.every,
        observe={"seen": sensing.measure}, progress=False,
    )  # fmt: skip
    finite = ~run.diverged
    spurious = run.observed["seen"]["spurious"][finite]
    early, late = spurious[:, run.step == p.stop][:, 0], spurious[:, run.step > p.stop]
    filtered = statistics.share(early < FILTERED)
    burst_share = statistics.share(late[early < FILTERED].max(1) > BURST)
    # the noise enters along the learnt direction, where the true signal damps it: s - 1, not s
    floor = p.step_size * np.sqrt((1 + p.spread**2) / (2 * p.m))
    map_of = lambda mean, steps, index, floor: scalar_map(
        two_point(mean, p.spread), p.step_size, steps=steps, runs=2000, key=jax.random.fold_in(key, index), floor=floor
    )
    end, top = map_of(0.0, p.steps, 1, floor)
    free, _ = map_of(1.0, p.steps, 2, floor)  # not damped by the true signal
    predicted_filtered = float((map_of(1.0, p.stop, 3, 0.0)[0] < FILTERED).mean())
    slope, slope_error = _exponent(np.sqrt(late))
    typical = statistics.median(np.median(late, axis=1))
    predicted = float(np.median(end))
    checks = (
        Check("share of the runs filtered at the early stop with a later burst above 0.5", burst_share[0],
              float((top > BURST).mean()), burst_share[1], Above(0.5), alternative=0.0, samples=math.inf),
        Check("share of runs with a spurious signal below 0.1 at the early stop", filtered[0], predicted_filtered,
              filtered[1], Within(0.1, 0.4), alternative=0.0, samples=math.inf),
        Check(
            "median of the later spurious signal / that of the scalar map with noise", typical[0] / predicted, 1.0,
            typical[1] / predicted, Within(0.5, 1.0), alternative=float(np.median(free)) / predicted,
        ),
        Check(
            "exponent κ of the tail of |q|", slope, burst_exponent(two_point(1.0, p.spread), p.step_size), slope_error,
            Within(0.15, 0.8), alternative=tail_exponent(two_point(1.0, p.spread), p.step_size),
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {"spurious": (("seed", "step"), spurious[:3]), "typical": np.median(late)}, coords={"step": run.step}
    )
    return Measurement(checks, data, p.seeds, int((~finite).sum()))


def _exponent(size: np.ndarray) -> tuple[float, float]:
    """Return the slope of the tail between two sizes, with its jackknife error."""
    low, high = 0.06, 0.24
    below, beyond = (size > low).mean(1), (size > high).mean(1)
    share = lambda part, keep: max(part[keep].mean(), 1e-9)
    slope = lambda keep: np.log(share(below, keep) / share(beyond, keep)) / np.log(high / low)
    runs = np.arange(len(size))
    without = np.array([slope(runs != run) for run in runs])
    return float(slope(runs >= 0)), float(np.sqrt((len(runs) - 1) * without.var()))


def _draw_bursts(measurement: Measurement, parameters: Long) -> "Figure":
    figure, (axes,) = style.new_figure(width=7.0)
    data = measurement.data
    for row, colour in zip(data.spurious.values, ("blue", "red", "green"), strict=False):
        axes.plot(data.step, row, color=style.COLOURS[colour], lw=0.7)
    axes.axhline(BURST, color=style.COLOURS["grey"], ls="--", lw=1, label="burst level")
    axes.axvline(parameters.stop, color=style.COLOURS["purple"], ls=":", lw=1.5, label="early stop")
    axes.set(xlabel="step", ylabel="spurious signal, three runs", yscale="log", ylim=(1e-7, 10))
    axes.legend()
    return figure


def _measure_tail(parameters: Tail, key: Key[Array, ""]) -> Measurement:
    p = parameters
    law = two_point(1.0, p.spread)
    end, _ = scalar_map(law, p.step_size, steps=p.steps, runs=p.runs, key=key, floor=p.floor)
    size = np.sqrt(end)
    levels = np.geomspace(p.low, p.high, 9)
    counts = np.array([(size > level).sum() for level in levels])
    # P(|q| > high given |q| > low) = (low/high)^kappa; the count above `high` is binomial given the count above `low`
    far = np.log(p.high / p.low)
    first, last = max(counts[0], 1), max(counts[-1], 1)
    exponent = np.log(first / last) / far
    error = np.sqrt(1 / last - 1 / first) / far
    predicted = tail_exponent(law, p.step_size)
    what = "exponent κ of the tail of |q|"
    check = Check(
        what, float(exponent), float(predicted), float(error), Within(0.02, 0.15), alternative=float(predicted) / 2
    )
    data = xarray.Dataset(
        {"share": ("level", counts / p.runs), "error": ("level", np.sqrt(counts) / p.runs)}, coords={"level": levels}
    )
    return Measurement((check,), data, p.runs)


def _draw_tail(measurement: Measurement, parameters: Tail) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    kappa = measurement.checks[0].predicted
    start = float(data.share[0])
    style.theory(axes, data.level, start * (data.level / data.level[0]) ** -kappa, f"power {-kappa:.3f} (Kesten)")
    style.points(axes, data.level, data.share, data.error, "scalar map with noise")
    axes.set(xlabel="size |q| of the component", ylabel="share of runs beyond", xscale="log", yscale="log")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="bursts-return",
        paper="heterogeneity",
        place="beyond the paper: Theorem 2 needs its early stop",
        statement="A run that has filtered out the spurious signal does not stay in that state: measurement noise "
        "excites the signal again, and the signal returns above 0.5. Its tail is that of a signal damped by the true "
        "one, E|1 + η (s - 1)|^κ = 1. Early stopping is part of the method.",
        equation="q+ = q (1 + η (s - 1 - q²)) + N(0, η² E s²/(2m)) along the learnt direction",
        alternative="A filtered signal stays filtered; or the returning signal is not damped by the true signal, and "
        "its tail has E|1 + η s|^κ = 1.",
        rests_on=("burst-tail",),
        scales={"smoke": Long(64), "default": Long(128), "full": Long(512)},
        measure=_measure_bursts,
        draw=_draw_bursts,
        accelerated=True,
    ),
    Claim(
        id="burst-tail",
        paper="heterogeneity",
        place="beyond the paper: a Kesten process",
        statement="A component that typically shrinks and is excited by small additive noise has a power-law tail. "
        "Its exponent is the positive root of E|1 + η s|^κ = 1.",
        equation="P(|q| > x) ~ x^-κ",
        alternative="The exponent is half that root, the root of E|1 + η s|^(2κ) = 1, the growth of squares.",
        scales={"smoke": Tail(10_000), "default": Tail(40_000), "full": Tail(400_000)},
        measure=_measure_tail,
        draw=_draw_tail,
        accelerated=True,
    ),
)
