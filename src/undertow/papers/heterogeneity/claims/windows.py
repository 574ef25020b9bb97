"""The step sizes that Theorem 2 allows, and the spread at which a run of finite length filters the spurious signal."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import scipy.sparse
import xarray
from jaxtyping import Array, Key

from undertow.figures import heatmap, style
from undertow.sensing.growth import lyapunov, paper_window, phase_diagram, transition_spread
from undertow.sensing.laws import two_point
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIDDLE = 400
"""Number of steps of the runs whose transition is measured at several means."""
SATURATED = 0.1
"""The level of q^2 below which a run counts as filtered; saturated runs can fall below it again."""
SMALL = 0.01
"""A level of |q| far below saturation."""
CELLS = 2000
"""Number of cells of the grid of log q on which its density is propagated."""


@dataclass(frozen=True)
class Windows:
    """Two-point laws mean ± M."""

    largest: float = 1e4
    """Upper end of the search for the spread M at which the window opens."""


@dataclass(frozen=True)
class Transition:
    """The scalar map from α, for several numbers of steps."""

    runs: int
    """Number of runs per cell, a multiple of 32."""
    spreads: int
    """Number of values of M between 2 and 8."""
    means: int = 9
    """Number of means between 1/2 and 3/2, odd; the middle one is the paper's."""
    step_size: float = 0.05
    """Step size η."""
    alpha: float = 1e-3
    """Start α of the component."""


def _measure_windows(parameters: Windows, key: Key[Array, ""]) -> Measurement:
    def ratio(mean: float, spread: float) -> float:
        low, high = paper_window(two_point(mean, spread))
        return low / high  # the window is empty where this is 1 or more

    laws = [(1.0, float(m)) for m in range(1, 11)] + [(0.5, 4.0)]  # of Figures 2 to 6
    low, high = 1.0, parameters.largest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(1.0, middle) > 1 else (low, middle)
    # 24 (1 + |E s|)/Var s = 1/(64 max|s|) is 24 * 64 (1 + E s)(E s + M) = M^2; without 1 + |E s| a factor of 2 less
    opens = lambda factor: factor / 2 + ((factor / 2) ** 2 + factor) ** 0.5
    exact, without = opens(24 * 64 * 2), opens(24 * 64)
    law = two_point(1.0, 2 * high)
    eta = math.prod(paper_window(law)) ** 0.5
    values = 1 + 2 * high * np.array([-1.0, 1.0])
    moment = lambda step: float(((1 + step * values + 2 * step) ** (2 / 3)).mean() - 1)
    least = min(ratio(*law) for law in laws)
    # under the alternative the constants are of order 1, and some of the simulations are inside the window
    checks = (
        Check("spread M at which the window of step sizes opens, mean 1", high, exact, 0.0, Within(1e-6, 1.0),
              alternative=without),
        Check("lower end / upper end of the window, least over the laws of all simulations", least, least, 0.0,
              Above(1.0), alternative=least / (24 * 64)),
        Check("step size 0.05 of the simulations / upper end of the window at M = 1",
              0.05 / paper_window(two_point(1.0, 1.0))[1], 0.05 * 64 * 2, 0.0, Within(1e-6, 1.0), alternative=0.05 * 2),
        Check("E|1 + η s + 2η|^(2/3) - 1 inside the window, at twice the opening M", moment(eta), moment(eta), 0.0,
              Below(0.0), alternative=moment(eta / 24)),
        Check("Lyapunov exponent at twice the opening M / (η E s - η² E s²/2)",
              lyapunov(law, eta) / (eta - eta**2 * (1 + 4 * high**2) / 2), 1.0, 0.0, Within(0.01, 0.1),
              alternative=math.log(1 + eta) / (eta - eta**2 * (1 + 4 * high**2) / 2)),
    )  # fmt: skip
    spreads = np.geomspace(1, parameters.largest, 200)
    ends = np.array([paper_window(two_point(1.0, float(m))) for m in spreads])
    data = xarray.Dataset({"low": ("spread", ends[:, 0]), "high": ("spread", ends[:, 1])}, coords={"spread": spreads})
    return Measurement(checks, data, 1)


def _draw_windows(measurement: Measurement, parameters: Windows) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.theory(axes, data.spread, data.low, "lower end 24/M2", "red")
    style.theory(axes, data.spread, data.high, "upper end 1/(64 M1)", "blue")
    axes.plot([1, 10], [0.05, 0.05], color=style.COLOURS["green"], lw=3, label="simulations of the paper")
    axes.set(xlabel="spread M of the spurious signal 1 ± M", ylabel="step size", xscale="log", yscale="log")
    axes.legend()
    return figure


def _near(shares: np.ndarray, within: float) -> np.ndarray:
    """Return the mask of shares closer than `within` to a half, and at least of the closest two."""
    away = np.abs(shares - 0.5)
    return (away < within) | (away <= np.sort(away)[1])


def _half(shares: np.ndarray, spreads: np.ndarray) -> tuple[float, float]:
    """Return the M at which half of the runs are filtered, from a line fitted to the shares, and its slope."""
    slope, level = np.polyfit(spreads, shares, 1)
    return float((0.5 - level) / slope), float(slope)


def _exact_share(mean: float, spread: float, eta: float, steps: int, alpha: float, level: float) -> float:
    """Return P(q^2 < level) of the scalar map, by propagating the density of log q on a grid."""
    grid = np.linspace(-60.0, 1.5, CELLS)
    width = grid[1] - grid[0]
    move = scipy.sparse.csr_matrix((CELLS, CELLS))
    for sign in (-1, 1):
        factor = 1 + eta * (mean + sign * spread - np.exp(2 * grid))
        place = np.clip((grid + np.log(np.abs(factor)) - grid[0]) / width, 0, CELLS - 1.001)
        cell = place.astype(int)
        for to, weight in ((cell, 1 - (place - cell)), (cell + 1, place - cell)):
            move = move + scipy.sparse.csr_matrix((weight / 2, (to, np.arange(CELLS))), (CELLS, CELLS))
    place = (math.log(alpha) - grid[0]) / width
    density = np.maximum(1 - np.abs(np.arange(CELLS) - place), 0)
    for _ in range(steps):
        density = move @ density
    return float(density @ np.clip(0.5 + (math.log(level) / 2 - grid) / width, 0, 1))


def _transition(
    parameters: Transition, shares: np.ndarray, mean: float, spreads: np.ndarray, steps: int, level: float
) -> tuple[float, float, float]:
    """Return the M at which half of the runs are filtered, measured and exact, and the error of the measured one."""
    p, near = parameters, _near(shares, 0.3)
    exact = np.array([_exact_share(mean, m, p.step_size, steps, p.alpha, level) for m in spreads[near]])
    measured, slope = _half(shares[near], spreads[near])
    return measured, _half(exact, spreads[near])[0], 0.5 / math.sqrt(p.runs * near.sum()) / slope


def _measure_transition(parameters: Transition, key: Key[Array, ""]) -> Measurement:
    p = parameters
    spreads, means = np.linspace(2, 8, p.spreads), np.linspace(0.5, 1.5, p.means)
    middle, lengths = p.means // 2, (200, MIDDLE, 4000)
    along = lambda n: means if n == MIDDLE else means[middle : middle + 1]
    draw = lambda n, level: phase_diagram(
        along(n), spreads, p.step_size, steps=n, key=jax.random.fold_in(key, n), runs=p.runs, alpha=p.alpha,
        level=level,
    )  # fmt: skip
    planes = {n: draw(n, SATURATED) for n in lengths}
    column = lambda plane: plane[:, plane.shape[1] // 2]
    rule = lambda mean, n, size=1.0: transition_spread(mean, p.step_size, steps=n, alpha=p.alpha / size)
    checks = []
    for n in (100, 200):  # far below saturation, and before saturated runs shrink again
        shares = column(draw(n, SMALL**2))
        near = _near(shares, 0.15)  # the shares are linear in M only near a half
        measured, slope = _half(shares[near], spreads[near])
        error = 0.5 / math.sqrt(p.runs * near.sum()) / slope
        what = f"{n} steps: M at which half of the runs have |q| < {SMALL:g}"
        checks.append(
            Check(what, measured, rule(1.0, n, SMALL), error, Within(0.05, 0.2), alternative=rule(1.0, math.inf))
        )
    for n, mean in ((200, 1.0), (MIDDLE, 1.0), (4000, 1.0), (MIDDLE, means[0]), (MIDDLE, means[-1])):
        shares = planes[n][:, int(np.argmin(np.abs(along(n) - mean)))]
        measured, exact, error = _transition(p, shares, float(mean), spreads, n, SATURATED)
        what = f"{n} steps, mean {mean:g}: M at which half of the runs have q² < {SATURATED:g}"
        checks.append(Check(what, measured, exact, error, Within(0.02, 0.15), alternative=rule(float(mean), n)))
    data = xarray.Dataset(
        {
            "share": (("steps", "spread"), np.array([column(plane) for plane in planes.values()])),
            "predicted": ("steps", [rule(1.0, n) for n in lengths]),
            "plane": (("spread", "mean"), planes[MIDDLE]),
            "bound": ("mean", np.array([rule(float(mean), MIDDLE) for mean in means])),
        },
        coords={"steps": list(lengths), "spread": spreads, "mean": means},
    )
    return Measurement(tuple(checks), data, p.runs)


def _draw_transition(measurement: Measurement, parameters: Transition) -> "Figure":
    figure, (axes, plane) = style.new_figure(2, width=5.0)
    data = measurement.data
    for row, predicted, colour in zip(data.share, data.predicted, ("blue", "green", "red"), strict=True):
        style.points(axes, data.spread, row, None, f"{int(row.steps)} steps", colour)
        axes.axvline(float(predicted), color=style.COLOURS[colour], lw=1.2)
    axes.set(xlabel="spread M (lines: α exp(TΛ) = 1)", ylabel="share with q² < 0.1, scalar map")
    axes.legend()
    heatmap.heat_map(plane, data["mean"], data.spread, data.plane, f"share after {MIDDLE} steps", limits=(0.0, 1.0))
    heatmap.boundary(plane, data["mean"], data.bound, "α exp(TΛ) = 1")
    plane.set(xlabel="mean of the spurious signal", ylabel="spread M")
    plane.legend(loc="lower right", frameon=True, framealpha=0.85)
    return figure


CLAIMS = (
    Claim(
        id="paper-window-empty",
        paper="heterogeneity",
        place="Theorem 2 against Section 5",
        statement="The interval of step sizes that Theorem 2 allows is nonempty only for spreads above 3,073 (mean "
        "1), so that all simulations of the paper lie outside the theorem. Inside the interval the typical spurious "
        "signal shrinks, as the theorem says.",
        equation="24 (1 + |E s|)/Var s < η < 1/(64 max|s|)",
        alternative="The lower end is 24/Var s, without the mean, and the interval opens at half that spread; or its "
        "constants are of order 1, and it contains some of the simulations.",
        scales={"smoke": Windows(), "default": Windows(), "full": Windows()},
        measure=_measure_windows,
        draw=_draw_windows,
    ),
    Claim(
        id="finite-time-transition",
        paper="heterogeneity",
        place="Figure 3, the transition",
        statement="The spread at which half of the runs are filtered depends on the length of the run. Far below "
        "saturation, half of the runs are below a size x where α exp(T Λ) = x, with the Lyapunov exponent Λ. Near "
        "saturation this rule is only a guide: runs that have grown to 1 shrink again, and in long runs half are below "
        "0.1 for M ≥ 5, although Λ is still positive.",
        equation="α exp(T Λ) = x,  2Λ = log|(1 + η)² - η² M²|",
        alternative="The length of the run does not matter and the boundary is Λ = 0; or α exp(T Λ) = 1 holds near "
        "saturation too.",
        rests_on=("filtering-by-spread",),
        scales={"smoke": Transition(1024, 25), "default": Transition(4096, 49, 17), "full": Transition(32_768, 97, 33)},
        measure=_measure_transition,
        draw=_draw_transition,
    ),
)
