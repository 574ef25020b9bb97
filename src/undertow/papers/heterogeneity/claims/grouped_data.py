"""Grouped regression data: when variables grow with one environment a step, and what an invariance test adds."""

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.grouped.data import moments_of
from undertow.grouped.designs import grouped_design
from undertow.grouped.invariant_regressor import InvariantRegressor
from undertow.grouped.two_phase import growth_phases, moment_noise
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = (0.1, 0.2, 0.4, 0.7, 1.0)
"""Rows of each group, over those of the largest."""


@dataclass(frozen=True)
class Growth:
    """Runs with one environment per step, in groups of unequal size, on children of y whose effect changes sign."""

    designs: int
    """Data sets drawn, for one cause and for several."""
    seeds: int = 64
    """Runs on each."""
    causes: int = 4
    """Causes of y where there are several."""
    alpha: float = 1e-24
    """Start of every u and v: the smaller, the sharper the phases. The law's error is of the order 1/log(1/alpha)."""
    theta: float = 0.9
    """The step size is theta/(2 max(covariance with y, curvature)): 1 is the edge of stability."""
    beyond: float = 1.5
    """Steps, in units of the step t1 at which all causes are fitted."""
    small: float = 0.01
    """The law is for variables that stay small: where it says that another u or v exceeds this, data are left out."""
    d: int = 30
    """Columns."""
    n: int = 1000
    """Rows in the largest of five groups; the others have .1, .2, .4 and .7 of it. Groups are drawn by their rows."""


@dataclass(frozen=True)
class Designs:
    """The estimator on data with a known answer."""

    designs: int
    """Data sets of each kind that it hardly ever fails on."""
    hard: int
    """Data sets of each kind that it fails on at times: consistent and shift."""
    d: int = 30
    """Columns, seven of which are causes and children of y."""
    n: int = 1000
    """Rows in each group."""
    environments: int = 5
    """Groups."""


def _seed(key: Key[Array, ""], index: int) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, index))))


def _log_sizes(params: Any) -> Any:
    return jnp.log(jnp.abs(params[0])), jnp.log(jnp.abs(params[1]))


@dataclass(frozen=True)
class _Grown:
    """Growth log(|u|/alpha) and log(|v|/alpha) of all columns but the causes: simulated, and by four laws."""

    simulated: np.ndarray
    law: np.ndarray
    """One phase for each cause."""
    single: np.ndarray
    """Two phases: t1 is the arrival of the last cause."""
    equal: np.ndarray
    """One phase for each cause, with groups that count equally."""
    first: np.ndarray
    """The rate of the first phase throughout."""
    diverged: int


def _grow(p: Growth, causes: int, key: Key[Array, ""], index: int) -> _Grown | None:
    """One data set; None where the law says that a column which is no cause does not stay small."""
    design = grouped_design("flip", _seed(key, index), d=p.d, n=p.n, causes=causes)
    kept = np.concatenate([np.flatnonzero(design.groups == e)[: round(part * p.n)] for e, part in enumerate(PARTS)])
    moments, _, _ = moments_of("fit", design.X[kept], design.y[kept], design.groups[kept])
    others = design.truth == 0
    inside = np.ix_(~others, ~others)
    fitted = np.zeros(p.d)
    fitted[~others] = np.linalg.solve(moments.pooled_second[inside], moments.pooled_cross[~others])
    half = np.sqrt(np.abs(fitted))
    curvature = np.linalg.eigvalsh(half[:, None] * moments.second * half[None]).max()
    eta = p.theta / (2 * max(np.abs(moments.cross).max(), curvature))
    phases = lambda steps, m=moments: growth_phases(m, fitted, step_size=eta, steps=steps, alpha=p.alpha)
    arrival = phases(10**6).arrival[~others]
    steps = int(p.beyond * arrival.max())
    largest = max(phases(int(t)).end[:, others].max() for t in (*arrival, steps))
    if largest > np.log(p.small):
        return None
    start = tuple(jnp.full(p.d, p.alpha, jnp.float64) for _ in range(2))
    run = descend(
        moment_noise(moments, jnp.float64), start, step_size=eta, steps=steps, key=jax.random.fold_in(key, index),
        seeds=p.seeds, observe={"logs": _log_sizes}, progress=False,
    )  # fmt: skip
    lived = ~run.diverged
    seen = np.stack([np.asarray(x)[lived, -1].mean(0) for x in run.observed["logs"]])
    growth = lambda logs: (logs[:, others] - np.log(p.alpha)).ravel()
    last = phases(steps)
    equal = replace(moments, sizes=np.ones_like(moments.sizes))
    return _Grown(
        simulated=growth(seen),
        law=growth(last.end),
        single=growth(last.two_phase(p.alpha, steps)),
        equal=growth(phases(steps, equal).end),
        first=steps * last.first[:, others].ravel(),
        diverged=int((~lived).sum()),
    )


def _compared(values: np.ndarray, law: np.ndarray) -> tuple[float, float, float]:
    """Slope and offset of the line through values over the law, and log10 of their root mean square distance.

    The distance is in units of the root mean square of the law.
    """
    slope, offset = np.polyfit(law, values, 1)
    return slope, offset, float(np.log10(np.sqrt(np.mean((values - law) ** 2) / np.mean(law**2)) + 1e-12))


def _measure_growth(parameters: Growth, key: Key[Array, ""]) -> Measurement:
    p = parameters
    lost, left_out = 0, 0
    checks, data = [], {}
    for name, causes, offset in (("one", 1, 0), ("several", p.causes, 100_000)):
        grown: list[_Grown] = []
        for index in range(100 * p.designs):
            one = _grow(p, causes, key, offset + index)
            left_out += one is None
            grown += [] if one is None else [one]
            if len(grown) == p.designs:
                break
        lost += sum(one.diverged for one in grown)
        laws = [one.single if causes == 1 else one.law for one in grown]
        against = lambda values, laws=laws: np.array([_compared(v, law) for v, law in zip(values, laws, strict=True)]).T
        slope, shift, misfit = (statistics.mean(x) for x in against([one.simulated for one in grown]))
        equal = against([one.equal for one in grown]).mean(1)
        rival = against([one.first if causes == 1 else one.single for one in grown]).mean(1)
        said = "one cause" if causes == 1 else f"{causes} causes"
        checks += [
            Check(f"{said}: log10 of the relative distance to the law", misfit[0], -2.0, misfit[1],
                  Below(-1.3), alternative=float(equal[2])),
            Check(f"{said}: slope of simulated over predicted growth", slope[0], 1.0, slope[1],
                  Within(0.02, 0.05), alternative=float(rival[0])),
            Check(f"{said}: offset of log size", shift[0], 0.0, shift[1],
                  Within(0.2, 0.4), alternative=float(equal[1])),
        ]  # fmt: skip
        data |= {
            f"simulated_{name}": (f"v_{name}", grown[0].simulated),
            f"predicted_{name}": (f"v_{name}", laws[0]),
            f"compared_{name}": (("number", f"design_{name}"), against([one.simulated for one in grown])),
        }
    note = (
        f"{left_out} of {left_out + 2 * p.designs} data sets are left out, because the law itself says that a column "
        "which is no cause comes up."
    )
    return Measurement(tuple(checks), xarray.Dataset(data), p.designs, lost, note)


def _draw_growth(measurement: Measurement, parameters: Growth) -> "Figure":
    figure, panels = style.new_figure(2)
    data = measurement.data
    for axes, name, title in zip(panels, ("one", "several"), ("one cause", f"{parameters.causes} causes"), strict=True):
        predicted, simulated = data[f"predicted_{name}"].values, data[f"simulated_{name}"].values
        ends = np.array([predicted.min(), predicted.max()])
        style.theory(axes, ends, ends, "equality")
        style.points(axes, predicted, simulated, None, "a variable: u or v")
        axes.set_title(title)
        axes.set_xlabel("predicted growth of log size")
        axes.set_ylabel("simulated, mean over runs")
        axes.legend()
    return figure


WRONG = 0.1
"""A coefficient error above this is a wrong answer."""
BOUNDS = {"flip": 0.05, "mild": 0.05, "consistent": 0.10, "chain": 0.05, "iid": 0.05}


def _measure_designs(parameters: Designs, key: Key[Array, ""]) -> Measurement:
    p = parameters
    errors, accepted, pooled = {}, {}, {}
    for kind, name in enumerate((*BOUNDS, "shift")):
        rows = []
        for index in range(p.hard if name in ("consistent", "shift") else p.designs):
            seed = _seed(key, 10_000 * kind + index)
            design = grouped_design(name, seed, d=p.d, n=p.n, environments=p.environments)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                model = InvariantRegressor().fit(design.X, design.y, design.groups)
            rows.append((design.error(model.coef_), design.error(model.pooled_coef_), model.invariant_))
        errors[name], pooled[name], accepted[name] = (np.array(x) for x in zip(*rows, strict=True))
    checks = []
    for name, bound in BOUNDS.items():
        middle, spread = statistics.median(errors[name])
        # without children least squares is right, so there is nothing to reject
        without = None if name == "iid" else float(np.median(pooled[name]))
        checks.append(
            Check(f"{name}: median coefficient error", middle, 0.0, spread, Below(bound),
                  alternative=without, samples=len(errors[name]))
        )  # fmt: skip
    share, spread = statistics.share(accepted["shift"] & (errors["shift"] > WRONG))
    checks.append(
        Check("shift: share accepted though wrong", share, 0.0, spread, Below(0.25),
              alternative=float(np.mean(pooled["shift"] > WRONG)), samples=len(errors["shift"]))
    )  # fmt: skip
    names = list(errors)
    data = xarray.Dataset(
        {f"error_{name}": (f"design_{name}", errors[name]) for name in names}
        | {f"least_squares_{name}": (f"design_{name}", pooled[name]) for name in names}
    )
    said = ", ".join(f"{name} {np.median(pooled[name]):.2f}" for name in BOUNDS)
    note = (
        f"Where means shift, {np.mean(accepted['shift']):.0%} of the data sets have a model that passes. "
        f"Median errors of pooled least squares: {said}."
    )
    return Measurement(tuple(checks), data, p.designs, note=note)


CLAIMS = (
    Claim(
        id="two-phase-law",
        paper="heterogeneity",
        place="beyond the paper: grouped data",
        statement="On grouped data a variable grows at one rate until the causes are fitted and at another afterwards, "
        "each group counting by its rows; with several causes there is a phase for each.",
        equation="log u(T) = log α + t1 E log|1 + 2η c_e| + (T - t1) E log|1 + 2η s_e|",
        alternative="Every group counts equally in the rates, whatever its rows; or the first rate holds throughout.",
        scales={"smoke": Growth(12), "default": Growth(40), "full": Growth(400)},
        measure=_measure_growth,
        draw=_draw_growth,
    ),
    Claim(
        id="invariant-regressor",
        paper="heterogeneity",
        place="beyond the paper: grouped data",
        statement="The heterogeneity flow with a test of invariance finds the invariant coefficients where children of "
        "y change their effect; where means shift it mostly finds none, and says so.",
        equation="d log u = -2η gbar - 2η ρ Var_e(g_e)",
        alternative="Groups tell nothing: the estimator does as pooled least squares, which uses the children of y.",
        scales={"smoke": Designs(20, 60), "default": Designs(60, 120), "full": Designs(400, 800)},
        measure=_measure_designs,
        long=True,
    ),
)
