"""Which step sizes the paper's theorem allows, and where a run of finite length changes from learning to filtering."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Above, Below, Check, Within
from undertow.environments.growth import lyapunov, paper_window, phase_diagram, transition_spread
from undertow.figures import style
from undertow.noise.laws import two_point


@dataclass(frozen=True)
class Windows:
    """Two-point laws mean +- M."""

    largest: float = 1e4
    """M up to which the window is looked for."""


@dataclass(frozen=True)
class Transition:
    """The scalar map from alpha, at several lengths of the run."""

    runs: int
    """In every cell, a multiple of 32."""
    spreads: int
    """Values of M between 2 and 8."""
    step_size: float = 0.05
    """eta."""
    alpha: float = 1e-3
    """Where the component starts."""


def _measure_windows(parameters: Windows, key: Key[Array, ""]) -> Measurement:
    def ratio(mean: float, spread: float) -> float:
        low, high = paper_window(two_point(mean, spread))
        return low / high  # the window is empty where this is 1 or more

    laws = [(1.0, float(m)) for m in range(1, 11)] + [(0.5, 4.0)]  # of Figures 2 to 6
    low, high = 1.0, parameters.largest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(1.0, middle) > 1 else (low, middle)
    first, last = paper_window(two_point(1.0, 2 * high))
    inside = lyapunov(two_point(1.0, 2 * high), (first * last) ** 0.5)
    exact = 1536 + (1536**2 + 3072) ** 0.5  # 24 * 64 * 2 (1 + M) = M^2
    checks = (
        Check("lower end over upper end, least over the laws of all simulations", *(
            min(ratio(*law) for law in laws), 1.0, 0.0), Above(1.0)),
        Check("the M at which the window opens, mean 1", high, exact, 0.0, Within(1e-6, 1.0)),
        Check("the step size .05 of the simulations over the upper end at M = 1", *(
            0.05 / paper_window(two_point(1.0, 1.0))[1], 6.4, 0.0), Above(1.0)),
        Check("Lyapunov exponent inside the window, at twice that M", inside, inside, 0.0, Below(0.0)),
    )  # fmt: skip
    spreads = np.geomspace(1, parameters.largest, 200)
    ends = np.array([paper_window(two_point(1.0, float(m))) for m in spreads])
    data = xarray.Dataset({"low": ("spread", ends[:, 0]), "high": ("spread", ends[:, 1])}, coords={"spread": spreads})
    return Measurement(checks, data, 1)


def _draw_windows(measurement: Measurement, parameters: Windows) -> Any:
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.theory(axes, data.spread, data.low, "lower end 24/M2", "red")
    style.theory(axes, data.spread, data.high, "upper end 1/(64 M1)", "blue")
    axes.plot([1, 10], [0.05, 0.05], color=style.COLOURS["green"], lw=3, label="simulations of the paper")
    axes.set(xlabel="spread M of the spurious signal 1 ± M", ylabel="step size", xscale="log", yscale="log")
    axes.legend()
    return figure


def _half(shares: np.ndarray, spreads: np.ndarray, runs: int) -> tuple[float, float]:
    """The M at which half of the runs are filtered, by a line through the shares around it, with its error."""
    near = np.abs(shares - 0.5) < 0.3
    slope, level = np.polyfit(spreads[near], shares[near], 1)
    return float((0.5 - level) / slope), float(0.5 / np.sqrt(runs * near.sum()) / slope)


def _measure_transition(parameters: Transition, key: Key[Array, ""]) -> Measurement:
    p = parameters
    spreads = np.linspace(2, 8, p.spreads)
    lengths = (200, 400, 4000)
    shares = np.array(
        [
            phase_diagram([1.0], spreads, p.step_size, steps=n, key=jax.random.fold_in(key, n), runs=p.runs)[:, 0]
            for n in lengths
        ]
    )
    told = [transition_spread(1.0, p.step_size, steps=n, alpha=p.alpha) for n in lengths]
    found = [_half(row, spreads, p.runs) for row in shares]
    checks = (
        *(
            Check(f"M at which half are filtered after {n} steps", m, want, error, Within(0.5, 1.0))
            for n, want, (m, error) in zip(lengths[:2], told[:2], found[:2], strict=True)
        ),
        Check("the same after 4,000 steps, where the rule says 6.3", found[2][0], told[2], found[2][1], Below(5.5)),
    )
    data = xarray.Dataset(
        {"share": (("steps", "spread"), shares), "told": ("steps", told)},
        coords={"steps": list(lengths), "spread": spreads},
    )
    return Measurement(checks, data, p.runs)


def _draw_transition(measurement: Measurement, parameters: Transition) -> Any:
    figure, (axes,) = style.new_figure()
    data = measurement.data
    for row, told, colour in zip(data.share, data.told, ("blue", "green", "red"), strict=True):
        style.points(axes, data.spread, row, None, f"{int(row.steps)} steps", colour)
        axes.axvline(float(told), color=style.COLOURS[colour], lw=1.2)
    axes.set(xlabel="spread M (lines: alpha exp(T lambda) = 1)", ylabel="share with q² < 0.1, scalar map")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="paper-window-empty",
        paper="heterogeneity",
        place="Theorem 2 against Section 5",
        statement="The theorem's step sizes exist only for spreads above 3,073 (mean 1): all simulations of the paper "
        "lie outside its theorem. Inside the window the typical spurious signal does shrink.",
        equation="24 (1 + |E s|)/Var s < eta < 1/(64 max|s|)",
        scales={"smoke": Windows(), "default": Windows(), "full": Windows()},
        measure=_measure_windows,
        draw=_draw_windows,
    ),
    Claim(
        id="finite-time-transition",
        paper="heterogeneity",
        place="Figure 3, the transition",
        statement="Where half the runs are filtered depends on the length of the run, by alpha exp(T lambda) = 1 while "
        "it is a few hundred steps. In long runs saturation matters and half are below 0.1 from M = 5 on, though "
        "lambda is still positive.",
        equation="alpha exp(T lambda) = 1,  2 lambda = log|(1 + eta)^2 - eta^2 M^2|",
        scales={"smoke": Transition(1024, 25), "default": Transition(4096, 49), "full": Transition(32_768, 97)},
        measure=_measure_transition,
        draw=_draw_transition,
    ),
)
