"""The share of runs that filter out a spurious signal, by heterogeneity and by step size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.figures import style
from undertow.papers.heterogeneity._runs import ends
from undertow.sensing.decomposition import auxiliary
from undertow.sensing.growth import lyapunov, scalar_map
from undertow.sensing.laws import AbstractLaw, two_point
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUARTILES = (0.25, 0.5, 0.75)
LEVEL = 0.1
"""A spurious signal below this has been filtered out."""
MAPPED = 5000
"""Number of runs of the scalar map, with which runs of SGD are compared."""
CURVE = 24
"""Number of points of the curve of the scalar map in a figure."""


@dataclass(frozen=True)
class Sweep:
    """HeteroSGD on matrix sensing with one true and one spurious direction of law mean 1, spread M."""

    seeds: int
    """Number of runs at each value of M."""
    spreads: int
    """Number of values of M from 1 to 8, both included."""
    d: int = 100
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements per step."""
    step_size: float = 0.05
    """Step size η of the paper."""
    steps: int = 200
    """Number of steps of each run."""
    alpha: float = 1e-3
    """Scale α of the start U = α I."""


@dataclass(frozen=True)
class Steps:
    """HeteroSGD at fixed heterogeneity and several step sizes, for a time that scales with 1/eta."""

    seeds: int
    """Number of runs at each step size."""
    values: int
    """Number of step sizes, from the list 0.05, 0.1, 0.02, 0.01."""
    d: int = 100
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements per step."""
    spread: float = 5.0
    """M of the spurious law 1 ± M."""
    time: float = 10.0
    """Length of each run in time, steps * step_size."""


@dataclass(frozen=True)
class ScalarMap:
    """The scalar recursion q <- q (1 + eta s)."""

    runs: int
    """Number of Monte Carlo runs."""
    step_size: float = 0.05
    """Step size η."""
    steps: int = 100
    """Number of steps t."""
    early: int = 10
    """Number of steps after which the mean of |q| is measured; later, rare runs dominate it."""


def _scalar_map_filtered(
    law: AbstractLaw, step_size: float, steps: int, key: Key[Array, ""], alpha: float = 1e-3
) -> tuple[float, float]:
    """Return the share of runs of the scalar map that end below the level, and the median of their ends."""
    end, _ = scalar_map(law, step_size, steps=steps, runs=MAPPED, key=key, alpha=alpha)
    return float((end < LEVEL).mean()), float(np.median(end))


def _against_map(
    what: str, measured: tuple[float, float], predicted: float, criterion: Within, alternative: float | None
) -> Check:
    """Compare a share of runs of SGD with that of the scalar map, with the errors of both."""
    error = math.hypot(measured[1], math.sqrt(predicted * (1 - predicted) / MAPPED))
    return Check(what, measured[0], predicted, error, criterion, alternative=alternative, samples=math.inf)


def _curve(
    laws: Sequence[AbstractLaw], sizes: np.ndarray, steps: np.ndarray, key: Key[Array, ""], alpha: float = 1e-3
) -> list[float]:
    """Return the share of runs of the scalar map below the level, for the curve of a figure."""
    settings = zip(laws, sizes, steps, strict=True)
    keys = [jax.random.fold_in(key, 2000 + index) for index in range(len(laws))]
    return [
        _scalar_map_filtered(law, float(eta), int(count), own, alpha)[0]
        for (law, eta, count), own in zip(settings, keys, strict=True)
    ]


def _measure_spread(parameters: Sweep, key: Key[Array, ""]) -> Measurement:
    p = parameters
    spreads = np.linspace(1, 8, p.spreads)
    true, spurious, filtered, mapped, total_diverged = [], [], [], [], 0
    for index, spread in enumerate(spreads):
        sensing = MatrixSensing(p.d, p.m, two_point(1.0, spread), dtype=jnp.float32)
        measures, diverged = ends(sensing, p.step_size, p.steps, p.seeds, jax.random.fold_in(key, index), alpha=p.alpha)
        total_diverged += diverged
        true.append(measures["true"])
        spurious.append(measures["spurious"])
        filtered.append(statistics.share(measures["spurious"] < LEVEL))
        own = jax.random.fold_in(key, 1000 + index)
        mapped.append(_scalar_map_filtered(two_point(1.0, spread), p.step_size, p.steps, own, p.alpha))
    mapped, medians = zip(*mapped, strict=True)
    worst = int(np.abs(np.array([g for g, _ in filtered]) - np.array(mapped)).argmax())
    first, last = (statistics.median(x) for x in (true[0], true[-1]))
    low, high = (statistics.median(x) for x in (spurious[0], spurious[-1]))
    # without variation between environments the spurious signal is learnt like the true one
    learnt = float(auxiliary(p.step_size, steps=p.steps, alpha=p.alpha).growth[-1] ** 2)

    def share(index: int, words: str, criterion: Within, alternative: float | None) -> Check:
        what = f"share of runs that filter out the spurious signal, {words} (M = {spreads[index]:.2g})"
        return _against_map(what, filtered[index], mapped[index], criterion, alternative)

    checks = (
        share(p.spreads // 2, "middle M", Within(0.05, 0.4), 0.0),
        share(p.spreads - 1, "largest M", Within(0.05, 0.4), 0.0),
        share(worst, "worst M", Within(0.1, 0.4), None),
        Check("M = 1: median true signal", first[0], learnt, first[1], Within(0.01, 0.05), alternative=0.0),
        Check("M = 1: median spurious signal", low[0], medians[0], low[1], Within(0.1, 0.4), alternative=0.0),
        Check("M = 8: median true signal", last[0], learnt, last[1], Above(0.95), alternative=0.0),
        Check("M = 8: median spurious signal", high[0], 0.0, high[1], Below(1e-3), alternative=learnt),
    )
    fine = np.linspace(1, 8, CURVE)
    laws = [two_point(1.0, spread) for spread in fine]
    data = xarray.Dataset(
        {
            "true": (("spread", "quantile"), [np.quantile(x, QUARTILES) for x in true]),
            "spurious": (("spread", "quantile"), [np.quantile(x, QUARTILES) for x in spurious]),
            "share": ("spread", [g[0] for g in filtered]),
            "share_error": ("spread", [g[1] for g in filtered]),
            "scalar_map": ("spread", list(mapped)),
            "curve": ("fine", _curve(laws, np.full(CURVE, p.step_size), np.full(CURVE, p.steps), key, p.alpha)),
        },
        coords={"spread": spreads, "quantile": list(QUARTILES), "fine": fine},
    )
    return Measurement(checks, data, p.seeds, total_diverged)


def _draw_spread(measurement: Measurement, parameters: Sweep) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.4)
    data = measurement.data
    for name, colour in (("true", "blue"), ("spurious", "red")):
        low, middle, high = data[name].values.T
        style.points(
            left,
            data.spread,
            middle,
            np.stack([middle - low, high - middle]),
            f"{name} signal, median and quartiles",
            colour,
        )
    left.set(xlabel="spread M of the spurious signal 1 ± M", ylabel="learnt signal at the end")
    left.legend()
    style.theory(right, data.fine, data.curve, "scalar map")
    style.points(right, data.spread, data.share, data.share_error, "SGD")
    right.set(xlabel="spread M of the spurious signal 1 ± M", ylabel="share of runs with spurious signal < 0.1")
    right.legend()
    return figure


def _measure_steps(parameters: Steps, key: Key[Array, ""]) -> Measurement:
    p = parameters
    etas = np.sort([0.05, 0.1, 0.02, 0.01][: p.values])
    law = two_point(1.0, p.spread)
    sensing = MatrixSensing(p.d, p.m, law, dtype=jnp.float32)
    checks, medians, total_diverged = [], [], 0
    for index, eta in enumerate(etas):
        steps = round(p.time / eta)
        own = jax.random.fold_in(key, index)
        measures, diverged = ends(sensing, float(eta), steps, p.seeds, own)
        predicted, predicted_at_half = (
            _scalar_map_filtered(law, float(eta) / parts, parts * steps, jax.random.fold_in(own, parts))[0]
            for parts in (1, 2)
        )
        filtered = statistics.share(measures["spurious"] < LEVEL)
        # at the smaller step sizes both shares are small, and separating them would need more runs
        other = predicted_at_half if predicted > 0.5 else None
        what = f"η = {eta:g}: share of runs that filter out the spurious signal"
        checks.append(_against_map(what, filtered, predicted, Within(0.04, 0.2), other))
        medians.append(statistics.median(measures["spurious"]))
        total_diverged += diverged
    fine = np.geomspace(0.01, 0.1, CURVE)
    data = xarray.Dataset(
        {
            "median": ("step_size", [m for m, _ in medians]), "error": ("step_size", [e for _, e in medians]),
            "share": ("step_size", [check.measured for check in checks]),
            "predicted": ("step_size", [check.predicted for check in checks]),
            "curve": ("fine", _curve([law] * CURVE, fine, np.round(p.time / fine), key)),
        },
        coords={"step_size": etas, "fine": fine},
    )  # fmt: skip
    return Measurement(tuple(checks), data, p.seeds, total_diverged)


def _draw_steps(measurement: Measurement, parameters: Steps) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.points(axes, data.step_size, data["median"], data.error, "HeteroSGD, median spurious signal")
    style.points(axes, data.step_size, data.share, None, "HeteroSGD, share filtered", "red")
    style.theory(axes, data.fine, data.curve, "scalar map, share filtered", "red")
    axes.axhline(1.0, color=style.COLOURS["grey"], label="mean of the spurious signal")
    axes.set(xlabel="step size η", ylabel=f"value at time {parameters.time:g}, steps × step size")
    axes.legend()
    return figure


def _measure_moments(parameters: ScalarMap, key: Key[Array, ""]) -> Measurement:
    """Compare E|q|, which grows equally for every M, with the moment 0.1, which falls for M of at least 7."""
    eta, t, early = parameters.step_size, parameters.steps, parameters.early
    spreads = np.arange(1.0, 11.0)
    factors = [np.abs(1 + eta * np.array([1 - m, 1 + m])) for m in spreads]
    tenth = np.array([np.mean(f**0.1) ** t for f in factors])
    means, moments, logs = [], [], []
    for index, spread in enumerate(spreads):
        sizes = two_point(1.0, spread).draw(jax.random.fold_in(key, index), t * parameters.runs)[:, 0]
        steps = np.log(np.abs(1 + eta * np.asarray(sizes, np.float64))).reshape(t, -1)
        total = steps.sum(0)
        means.append(statistics.mean(np.exp(steps[:early].sum(0))))
        moments.append(statistics.mean(np.exp(0.1 * total)))
        logs.append(statistics.mean(total / t))
    ratios = [(m / w, e / w) for (m, e), w in zip(moments, tenth, strict=True)]
    worst = int(np.argmax([abs(r - 1) / max(e, 1e-12) for r, e in ratios]))
    of = {int(m): index for index, m in enumerate(spreads)}
    growth = (1 + eta) ** t  # of E|q|
    typical = lyapunov(two_point(1.0, 8.0), eta)
    checks = (
        *(
            Check(f"M = {m}: E|q|^0.1 after {t} steps", moments[of[m]][0], tenth[of[m]], moments[of[m]][1],
                  Within(0.0, 0.05), alternative=growth**0.1)
            for m in (8, 6)
        ),
        Check(f"M = 6: E|q|^0.1 after {t} steps is above 1", *_bounded(moments[of[6]]), Above(1.0)),
        Check(f"M = 7: E|q|^0.1 after {t} steps is below 1", *_bounded(moments[of[7]]), Below(1.0),
              alternative=growth**0.1),
        Check(f"E|q|^0.1 / exact value, worst of all M (M = {spreads[worst]:.0f})",
              ratios[worst][0], 1.0, ratios[worst][1], Within(1e-3, 0.2)),
        Check("M = 8: E log|q| per step", logs[of[8]][0], typical, logs[of[8]][1], Within(0.0, 0.01),
              alternative=math.log(1 + eta)),
        *(
            Check(f"M = {m}: E|q| after {early} steps", means[of[m]][0], (1 + eta) ** early, means[of[m]][1],
                  Within(0.0, 0.3), alternative=math.exp(early * lyapunov(two_point(1.0, float(m)), eta)))
            for m in (5, 8)
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {"mean": ("spread", np.full(len(spreads), growth)), "tenth": ("spread", tenth),
         "drawn": ("spread", [d[0] for d in moments]), "drawn_error": ("spread", [d[1] for d in moments])},
        coords={"spread": spreads},
    )  # fmt: skip
    return Measurement(checks, data, parameters.runs)


def _bounded(pair: tuple[float, float]) -> tuple[float, float, float]:
    """Return (measured, predicted, uncertainty) of a number for which only a bound is predicted."""
    return pair[0], pair[0], pair[1]


def _draw_moments(measurement: Measurement, parameters: ScalarMap) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.theory(axes, data.spread, data.tenth, "E|q|^0.1, exact")
    style.points(axes, data.spread, data.drawn, data.drawn_error, "Monte Carlo")
    style.theory(axes, data.spread, data["mean"], "E|q|, the same for every M", "red")
    axes.axhline(1.0, color=style.COLOURS["green"], lw=1, ls="--", label="start")
    axes.set(xlabel="spread M of the spurious signal 1 ± M", ylabel=f"growth in {parameters.steps} steps", yscale="log")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="filtering-by-spread",
        paper="heterogeneity",
        place="Figure 3 and Theorem 2",
        statement="HeteroSGD learns the invariant signal at every heterogeneity and filters out the spurious one if "
        "it varies enough between environments. The scalar map q <- q (1 + η (s - q²)) predicts the share of filtered "
        "runs.",
        equation="y = <X, u*u*' + s v*v*'>,  s in {1 - M, 1 + M}",
        alternative="Only the mean of the spurious signal matters: at every heterogeneity it is learnt like the "
        "invariant signal.",
        rests_on=("exact-law",),
        controls=True,
        scales={"smoke": Sweep(48, 3, d=20), "default": Sweep(128, 14), "full": Sweep(1000, 29)},
        measure=_measure_spread,
        draw=_draw_spread,
        accelerated=True,
    ),
    Claim(
        id="filtering-by-step",
        paper="heterogeneity",
        place="Figure 4",
        statement="A large step size filters out the spurious signal; a small one learns it in the same time, steps * "
        "η. The scalar map at that step size predicts the share of filtered runs.",
        equation="Λ = E log|1 + η s| < 0 needs η > 2 E s/(M² - (E s)²)",
        alternative="Twice as many steps of half the size filter as many runs as the scalar map predicts for the "
        "whole step size.",
        rests_on=("exact-law",),
        controls=True,
        scales={"smoke": Steps(256, 2, d=20), "default": Steps(256, 4), "full": Steps(1000, 4)},
        measure=_measure_steps,
        draw=_draw_steps,
        accelerated=True,
    ),
    Claim(
        id="typical-growth",
        paper="heterogeneity",
        place="Figure 2",
        statement="The mean of the spurious component grows at the same rate for every heterogeneity M. At η = 0.05 "
        "the typical size of the component falls for M ≥ 7.",
        equation="E|1 + η s|^p,  p = 1 against p = 0.1",
        alternative="The mean is typical: all moments follow it, E|q|^0.1 = (E|q|)^0.1, and the mean itself grows "
        "like exp(t E log|1 + η s|).",
        controls=True,
        scales={"smoke": ScalarMap(8_000), "default": ScalarMap(100_000), "full": ScalarMap(1_000_000)},
        measure=_measure_moments,
        draw=_draw_moments,
        accelerated=True,
    ),
)
