"""How much heterogeneity filters a spurious signal out: against its size, and against the step size."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.claims import statistics
from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Above, Below, Check, Within
from undertow.claims.sensing_runs import ends
from undertow.environments.growth import lyapunov, scalar_map
from undertow.figures import style
from undertow.noise.laws import two_point
from undertow.noise.sensing import MatrixSensing

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Sweep:
    """HeteroSGD on matrix sensing with one true and one spurious direction of law mean 1, spread M."""

    seeds: int
    """Runs at each value."""
    spreads: int
    """How many values of M from 1 to 8, both included."""
    d: int = 100
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements a step."""
    step_size: float = 0.05
    """The paper's eta."""
    steps: int = 200
    """When the runs are looked at."""
    alpha: float = 1e-3
    """The start is alpha times the identity."""


@dataclass(frozen=True)
class Steps:
    """HeteroSGD at fixed heterogeneity and several step sizes, for a time that scales with 1/eta."""

    seeds: int
    """Runs at each step size."""
    values: int
    """How many step sizes, from 0.01 to 0.1, both included."""
    d: int = 100
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements a step."""
    spread: float = 5.0
    """M of the spurious law 1 +- M."""
    time: float = 10.0
    """steps * step_size."""


@dataclass(frozen=True)
class Moments:
    """The scalar recursion q <- q (1 + eta s)."""

    runs: int
    """Of the Monte Carlo."""
    step_size: float = 0.05
    """eta."""
    steps: int = 100
    """t."""


def _measure_spread(parameters: Sweep, key: Key[Array, ""]) -> Measurement:
    spreads = np.linspace(1, 8, parameters.spreads)
    true, spurious, gone, told, errors, lost = [], [], [], [], [], 0
    for index, spread in enumerate(spreads):
        sensing = MatrixSensing(parameters.d, parameters.m, two_point(1.0, spread), dtype=jnp.float32)
        seen, diverged = ends(sensing, parameters.step_size, parameters.steps, parameters.seeds,
                              jax.random.fold_in(key, index), alpha=parameters.alpha)  # fmt: skip
        lost += diverged
        true.append(seen["true"])
        spurious.append(seen["spurious"])
        gone.append(statistics.share(seen["spurious"] < 0.1))
        end, _ = scalar_map(two_point(1.0, spread), parameters.step_size, steps=parameters.steps, runs=20_000,
                            key=jax.random.fold_in(key, 1000 + index), alpha=parameters.alpha)  # fmt: skip
        told.append(float((end < 0.1).mean()))
        errors.append(gone[-1][0] - told[-1])
    worst = int(np.abs(errors).argmax())
    first, last = (statistics.median(x) for x in (true[0], true[-1]))
    low, high = (statistics.median(x) for x in (spurious[0], spurious[-1]))
    checks = (
        Check("M = 1: median true signal", first[0], 0.995, first[1], Within(0.015, 0.05)),
        Check("M = 1: median spurious signal", low[0], 1.0, low[1], Above(0.75)),
        Check("M = 8: median true signal", last[0], 1.0, last[1], Above(0.95)),
        Check("M = 8: median spurious signal", high[0], 0.0, high[1], Below(1e-3)),
        Check("M = 8: share with spurious < 0.1", gone[-1][0], 1.0, gone[-1][1], Above(0.85)),
        Check(
            f"share filtered against the scalar map, worst (M = {spreads[worst]:.2g})", gone[worst][0], told[worst],
            gone[worst][1], Within(0.2, 0.4),
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {
            "true": (("spread", "quantile"), [np.quantile(x, QUARTILES) for x in true]),
            "spurious": (("spread", "quantile"), [np.quantile(x, QUARTILES) for x in spurious]),
            "share": ("spread", [g[0] for g in gone]),
            "share_error": ("spread", [g[1] for g in gone]),
            "scalar_map": ("spread", told),
        },
        coords={"spread": spreads, "quantile": list(QUARTILES)},
    )
    return Measurement(checks, data, parameters.seeds, lost)


def _draw_spread(measurement: Measurement, parameters: Sweep) -> Any:
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
    left.set(xlabel="spread M of the spurious signal 1 ± M", ylabel="learnt")
    left.legend()
    style.theory(right, data.spread, data.scalar_map, "scalar map")
    style.points(right, data.spread, data.share, data.share_error, "SGD")
    right.set(xlabel="spread M", ylabel="share of runs with spurious < 0.1")
    right.legend()
    return figure


def _measure_steps(parameters: Steps, key: Key[Array, ""]) -> Measurement:
    etas = np.sort([0.01, 0.1, 0.05, 0.02][: parameters.values])
    sensing = MatrixSensing(parameters.d, parameters.m, two_point(1.0, parameters.spread), dtype=jnp.float32)
    found = [
        ends(sensing, float(eta), round(parameters.time / eta), parameters.seeds, jax.random.fold_in(key, i))
        for i, eta in enumerate(etas)
    ]
    medians = [statistics.median(seen["spurious"]) for seen, _ in found]
    checks = (
        Check("eta = 0.01: median spurious signal", *_first(medians[0]), Above(0.4)),
        Check("eta = 0.1: median spurious signal", *_first(medians[-1]), Below(0.005)),
    )
    data = xarray.Dataset(
        {"median": ("step_size", [m for m, _ in medians]), "error": ("step_size", [e for _, e in medians])},
        coords={"step_size": etas},
    )
    return Measurement(checks, data, parameters.seeds, sum(lost for _, lost in found))


def _first(pair: tuple[float, float]) -> tuple[float, float, float]:
    """(measured, predicted, uncertainty) where the prediction is the bound itself."""
    return pair[0], pair[0], pair[1]


def _draw_steps(measurement: Measurement, parameters: Steps) -> Any:
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.points(axes, data.step_size, data["median"], data.error, "HeteroSGD, median over runs")
    axes.axhline(1.0, color=style.COLOURS["grey"], label="mean of the spurious signal")
    axes.set(xlabel="step size", ylabel="spurious signal at time 10")
    axes.legend()
    return figure


def _measure_moments(parameters: Moments, key: Key[Array, ""]) -> Measurement:
    """E|q| grows the same for every M; a small moment, which is typical, falls from M = 7 on."""
    eta, t = parameters.step_size, parameters.steps
    spreads = np.arange(1.0, 11.0)
    factors = [np.abs(1 + eta * np.array([1 - m, 1 + m])) for m in spreads]
    first = np.array([np.mean(f) ** t for f in factors])
    tenth = np.array([np.mean(f**0.1) ** t for f in factors])
    drawn = []
    for index, spread in enumerate(spreads):
        law = two_point(1.0, spread)
        signs = law.draw(jax.random.fold_in(key, index), t * parameters.runs)[:, 0].reshape(t, parameters.runs)
        logs = np.asarray(jnp.sum(jnp.log(jnp.abs(1 + eta * signs)), axis=0), np.float64)
        drawn.append(statistics.mean(np.exp(0.1 * logs)))
    ratios = [(m / w, e / w) for (m, e), w in zip(drawn, tenth, strict=True)]
    worst = int(np.argmax([abs(r - 1) / e for r, e in ratios]))
    typical = np.array([lyapunov(two_point(1.0, spread), eta) for spread in spreads])
    checks = (
        Check("E|q| over its start, M = 8", float(first[7]), 1.05**100, 0.0, Within(1e-9, 1e-3)),
        Check("E|q|^0.1 over its start, M = 8", float(tenth[7]), 0.806, 0.0, Within(0.001, 0.01)),
        Check("E|q|^0.1 over its start, M = 6", float(tenth[5]), 1.111, 0.0, Within(0.001, 0.01)),
        Check(f"Monte Carlo of E|q|^0.1 over exact, worst (M = {spreads[worst]:.0f})", *(
            ratios[worst][0], 1.0, ratios[worst][1]), Within(1e-3, 0.2)),
        Check("the sign of the Lyapunov exponent changes at M^2 = 1 + 2/eta",
              float(spreads[np.argmax(typical < 0)]), 7.0, 0.0, Within(1e-9, 0.5)),
    )  # fmt: skip
    data = xarray.Dataset(
        {"mean": ("spread", first), "tenth": ("spread", tenth), "drawn": ("spread", [d[0] for d in drawn]),
         "drawn_error": ("spread", [d[1] for d in drawn])},
        coords={"spread": spreads},
    )  # fmt: skip
    return Measurement(checks, data, parameters.runs)


def _draw_moments(measurement: Measurement, parameters: Moments) -> Any:
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.theory(axes, data.spread, data.tenth, "E|q|^0.1, exact")
    style.points(axes, data.spread, data.drawn, data.drawn_error, "Monte Carlo")
    style.theory(axes, data.spread, data["mean"], "E|q|, the same for every M", "red")
    axes.axhline(1.0, color=style.COLOURS["green"], lw=1, ls="--", label="start")
    axes.set(xlabel="spread M", ylabel="growth in 100 steps", yscale="log")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="filtering-by-spread",
        paper="heterogeneity",
        place="Figure 3 and Theorem 2",
        statement="HeteroSGD learns the invariant signal at every heterogeneity and filters the spurious one out when "
        "it varies enough; the scalar map q <- q (1 + eta (s - q^2)) says how often.",
        equation="y = <X, u*u*' + s v*v*'>,  s in {1 - M, 1 + M}",
        scales={"smoke": Sweep(96, 3, d=20), "default": Sweep(128, 14), "full": Sweep(1000, 29)},
        measure=_measure_spread,
        draw=_draw_spread,
        accelerated=True,
    ),
    Claim(
        id="filtering-by-step",
        paper="heterogeneity",
        place="Figure 4",
        statement="A large step is what filters: at the same time steps * eta a small one learns the spurious signal.",
        equation="lambda = E log|1 + eta s| < 0 needs eta > 2 E s/(M^2 - E s^2)",
        scales={"smoke": Steps(256, 2, d=20), "default": Steps(256, 4), "full": Steps(1000, 4)},
        measure=_measure_steps,
        draw=_draw_steps,
        accelerated=True,
    ),
    Claim(
        id="typical-growth",
        paper="heterogeneity",
        place="Figure 2",
        statement="The mean of the spurious component grows the same at every heterogeneity; what is typical of it "
        "falls, from M = 7 on at eta = 0.05.",
        equation="E|1 + eta s|^p,  p = 1 against p = 0.1",
        scales={"smoke": Moments(20_000), "default": Moments(100_000), "full": Moments(1_000_000)},
        measure=_measure_moments,
        draw=_draw_moments,
        accelerated=True,
    ),
)
