"""Grouped regression data: the growth of variables with one environment per step, and an invariant estimator."""

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.grouped.data import moments_of
from undertow.grouped.designs import grouped_design
from undertow.grouped.two_phase import growth_phases, moment_noise
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = (0.1, 0.2, 0.4, 0.7, 1.0)
"""Number of rows of each group, relative to the largest."""


@dataclass(frozen=True)
class Growth:
    """Runs with one environment per step, in groups of unequal size, on children of y whose effect changes sign."""

    designs: int
    """Number of data sets, for one cause and for several."""
    seeds: int = 64
    """Number of runs on each data set."""
    causes: int = 4
    """Number of causes of y in the data sets with several."""
    alpha: float = 1e-24
    """Start α of every u and v. The phases are sharper for smaller α: the law's error is of the order 1/log(1/α)."""
    theta: float = 0.9
    """The step size is θ/(2 max(covariance with y, curvature)); θ = 1 is the edge of stability."""
    beyond: float = 1.5
    """Number of steps, in units of the step t1 at which all causes are fitted."""
    small: float = 0.01
    """Largest u or v of the other columns that the law may predict; data sets beyond it are left out."""
    d: int = 30
    """Number of columns."""
    n: int = 1000
    """Rows of the largest of five groups; the others have 0.1, 0.2, 0.4 and 0.7 of it. Groups are drawn by size."""


@dataclass(frozen=True)
class Designs:
    """The estimator on designs with known coefficients."""

    designs: int
    """Number of data sets of each kind on which it rarely fails."""
    hard: int
    """Number of data sets of each kind on which it sometimes fails: consistent, chain and child noise."""
    shift: int
    """Number of data sets of the kind shift, of which the share with a wrong model that passes is measured."""
    d: int = 30
    """Number of columns, of which seven are causes and children of y."""
    n: int = 1000
    """Number of rows in each group."""
    environments: int = 5
    """Number of groups."""


def _seed(key: Key[Array, ""], index: int) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, index))))


def _log_sizes(params: PyTree) -> tuple[Array, Array]:
    return jnp.log(jnp.abs(params[0])), jnp.log(jnp.abs(params[1]))


@dataclass(frozen=True)
class _Grown:
    """Growth log(|u|/α) and log(|v|/α) of all columns except the causes: simulated, and predicted by four laws."""

    simulated: np.ndarray
    law: np.ndarray
    """One phase for each cause."""
    single: np.ndarray
    """Two phases: t1 is the arrival of the last cause."""
    equal: np.ndarray
    """One phase for each cause, with equal weights of the groups."""
    first: np.ndarray
    """The rate of the first phase in the whole run."""
    diverged: int


def _grow(p: Growth, causes: int, key: Key[Array, ""], index: int) -> _Grown | None:
    """Return the growth on one data set, or None if the law predicts that another column than the causes grows."""
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
    finite = ~run.diverged
    logs = np.stack([np.asarray(x)[finite, -1].mean(0) for x in run.observed["logs"]])
    growth = lambda logs: (logs[:, others] - np.log(p.alpha)).ravel()
    last = phases(steps)
    equal = replace(moments, sizes=np.ones_like(moments.sizes))
    return _Grown(
        simulated=growth(logs),
        law=growth(last.end),
        single=growth(last.two_phase(p.alpha, steps)),
        equal=growth(phases(steps, equal).end),
        first=steps * last.first[:, others].ravel(),
        diverged=int((~finite).sum()),
    )


def _compared(values: np.ndarray, law: np.ndarray) -> tuple[float, float, float]:
    """Return slope and offset of the line of `values` over `law`, and log10 of their root mean square distance.

    The distance is in units of the root mean square of `law`.
    """
    slope, offset = np.polyfit(law, values, 1)
    return slope, offset, float(np.log10(np.sqrt(np.mean((values - law) ** 2) / np.mean(law**2)) + 1e-12))


def _measure_growth(parameters: Growth, key: Key[Array, ""]) -> Measurement:
    p = parameters
    diverged, left_out = 0, 0
    checks, data = [], {}
    for name, causes, offset in (("one", 1, 0), ("several", p.causes, 100_000)):
        grown: list[_Grown] = []
        for index in range(100 * p.designs):
            one = _grow(p, causes, key, offset + index)
            left_out += one is None
            grown += [] if one is None else [one]
            if len(grown) == p.designs:
                break
        diverged += sum(one.diverged for one in grown)
        laws = [one.single if causes == 1 else one.law for one in grown]
        against = lambda values, laws=laws: np.array([_compared(v, law) for v, law in zip(values, laws, strict=True)]).T
        slope, shift, misfit = (statistics.mean(x) for x in against([one.simulated for one in grown]))
        equal = against([one.equal for one in grown]).mean(1)
        rival = against([one.first if causes == 1 else one.single for one in grown]).mean(1)
        label = "one cause" if causes == 1 else f"{causes} causes"
        checks += [
            Check(f"{label}: log10 of the relative distance of simulated growth to the law", misfit[0], -2.0, misfit[1],
                  Below(-1.3), alternative=float(equal[2])),
            Check(f"{label}: slope of simulated over predicted growth", slope[0], 1.0, slope[1],
                  Within(0.02, 0.05), alternative=float(rival[0])),
            Check(f"{label}: offset of simulated over predicted growth", shift[0], 0.0, shift[1],
                  Within(0.2, 0.4), alternative=float(equal[1])),
        ]  # fmt: skip
        data |= {
            f"simulated_{name}": (f"v_{name}", grown[0].simulated),
            f"predicted_{name}": (f"v_{name}", laws[0]),
            f"compared_{name}": (("number", f"design_{name}"), against([one.simulated for one in grown])),
        }
    note = (
        f"{left_out} of {left_out + 2 * p.designs} data sets are left out, because the law predicts that a column "
        "other than a cause does not stay small."
    )
    return Measurement(tuple(checks), xarray.Dataset(data), p.designs, diverged, note)


def _draw_growth(measurement: Measurement, parameters: Growth) -> "Figure":
    figure, panels = style.new_figure(2)
    data = measurement.data
    for axes, name, title in zip(panels, ("one", "several"), ("one cause", f"{parameters.causes} causes"), strict=True):
        predicted, simulated = data[f"predicted_{name}"].values, data[f"simulated_{name}"].values
        ends = np.array([predicted.min(), predicted.max()])
        style.theory(axes, ends, ends, "equality")
        style.points(axes, predicted, simulated, None, "one variable, u or v")
        axes.set_title(title)
        axes.set_xlabel("predicted growth of log size")
        axes.set_ylabel("simulated growth, mean over runs")
        axes.legend()
    return figure


WRONG = 0.1
"""A coefficient error above this counts as wrong."""
BOUND = 0.05
"""The largest median error of the coefficients."""
EASY = ("flip", "mild", "flip with covariate shift", "iid")
HARD = ("consistent", "chain", "child noise")


def _measure_designs(parameters: Designs, key: Key[Array, ""]) -> Measurement:
    from undertow.grouped.invariant_regressor import InvariantRegressor

    p = parameters
    errors, accepted, pooled = {}, {}, {}
    numbers = dict.fromkeys(EASY, p.designs) | dict.fromkeys(HARD, p.hard) | {"shift": p.shift}
    for kind, (name, number) in enumerate(numbers.items()):
        rows = []
        for index in range(number):
            seed = _seed(key, 10_000 * kind + index)
            design = grouped_design(name, seed, d=p.d, n=p.n, environments=p.environments)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                model = InvariantRegressor().fit(design.X, design.y, design.groups)
            rows.append((design.error(model.coef_), design.error(model.pooled_coef_), model.invariant_))
        errors[name], pooled[name], accepted[name] = (np.array(x) for x in zip(*rows, strict=True))
    checks = []
    for name in errors:
        middle, spread = statistics.median(errors[name])
        # without children of y pooled least squares is right, so there is no alternative to reject
        without = None if name == "iid" else float(np.median(pooled[name]))
        checks.append(
            Check(f"{name}: median coefficient error", middle, 0.0, spread, Below(BOUND),
                  alternative=without, samples=len(errors[name]))
        )  # fmt: skip
    share, spread = statistics.share(accepted["shift"] & (errors["shift"] > WRONG))
    checks.append(
        Check("shift: share of data sets with a wrong model that passes the test", share, 0.0, spread, Below(0.25),
              alternative=float(np.mean(pooled["shift"] > WRONG)), samples=len(errors["shift"]))
    )  # fmt: skip
    names = list(errors)
    data = xarray.Dataset(
        {f"error_{name}": (f"design_{name}", errors[name]) for name in names}
        | {f"least_squares_{name}": (f"design_{name}", pooled[name]) for name in names}
    )
    least_squares = ", ".join(f"{name} {np.median(pooled[name]):.2f}" for name in names)
    note = (
        f"A model passes the test on {np.mean(np.concatenate(list(accepted.values()))):.1%} of the data sets. "
        f"Median errors of pooled least squares: {least_squares}."
    )
    return Measurement(tuple(checks), data, p.designs, note=note)


def _draw_designs(measurement: Measurement, parameters: Designs) -> "Figure":
    """Draw the error of every data set over that of least squares, which the alternative equates."""
    figure, (axes,) = style.new_figure()
    data = measurement.data
    groups = (EASY, HARD, ("shift",))
    for names, colour, marker in zip(groups, ("blue", "purple", "green"), "osD", strict=True):
        both = ([style.some(data[f"{kind}_{name}"], 16) for name in names] for kind in ("least_squares", "error"))
        style.points(axes, *map(np.concatenate, both), None, ", ".join(names), colour, marker)
    ends = [min(map(float, data.min().values())), max(map(float, data.max().values()))]
    style.theory(axes, ends, ends, "no better than least squares", "red")
    style.theory(axes, ends, [BOUND, BOUND], "largest median error that the claim allows")
    axes.set(xlabel="coefficient error of pooled least squares", ylabel="error of the estimator",
             xscale="log", yscale="log")  # fmt: skip
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="two-phase-law",
        paper="heterogeneity",
        place="beyond the paper: grouped data",
        statement="On grouped data a variable grows at one rate until the causes are fitted and at another rate "
        "afterwards, with each group weighted by its number of rows. With several causes there is one phase for each.",
        equation="log u(T) = log α + t1 E log|1 + 2η c_e| + (T - t1) E log|1 + 2η s_e|",
        alternative="Every group has the same weight in the rates, whatever its number of rows; or the first rate "
        "holds in the whole run.",
        scales={"smoke": Growth(16), "default": Growth(40), "full": Growth(400)},
        measure=_measure_growth,
        draw=_draw_growth,
    ),
    Claim(
        id="invariant-regressor",
        paper="heterogeneity",
        place="beyond the paper: grouped data",
        statement="A test of invariance, on all subsets of ten screened columns and on the supports of the "
        "heterogeneity flow, finds the invariant coefficients if the children of y differ between groups by their "
        "effect, their noise or their means.",
        equation="E_e[r] = 0 and E_e[x_A r] = 0 in every group e, r = y - b0 - x_A.b",
        alternative="The groups carry no information: the estimator agrees with pooled least squares, which uses the "
        "children of y.",
        rests_on=("two-phase-law",),
        controls=True,
        scales={
            "smoke": Designs(16, 20, 60, d=8),
            "default": Designs(60, 120, 120),
            "full": Designs(400, 800, 800),
        },
        measure=_measure_designs,
        draw=_draw_designs,
        long=True,
    ),
)
