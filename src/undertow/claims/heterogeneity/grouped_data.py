"""Grouped regression data: when variables grow with one environment a step, and what an invariance test adds."""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.claims import statistics
from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Above, Below, Check
from undertow.dynamics.descend import descend
from undertow.environments.grouped import moments_of
from undertow.environments.invariant_regressor import InvariantRegressor
from undertow.environments.two_phase import growth_phases, moment_noise
from undertow.figures import style
from undertow.figures.compare import compare
from undertow.models.grouped_designs import grouped_design


@dataclass(frozen=True)
class Growth:
    """Runs with one environment a step on children of y whose effect changes sign."""

    designs: int
    """Data sets drawn, for one cause and for several."""
    seeds: int = 64
    """Runs on each."""
    causes: int = 4
    """Causes of y where there are several."""
    alpha: float = 1e-6
    """Start of every u and v: the smaller, the sharper the phases."""
    theta: float = 0.9
    """The step size is theta/(2 max(covariance with y, curvature)): 1 is the edge of stability."""
    beyond: float = 1.5
    """Steps, in units of the step t1 at which all causes are fitted."""
    d: int = 30
    """Columns."""
    n: int = 1000
    """Rows in each of five groups."""


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


def _grow(p: Growth, causes: int, key: Key[Array, ""], index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """log u and log v of all but the causes: simulated, by one phase a cause, and by two phases."""
    design = grouped_design("flip", _seed(key, index), d=p.d, n=p.n, causes=causes)
    moments, _, _ = moments_of("fit", design.X, design.y, design.groups)
    truth = design.truth * moments.scale[:-1] / moments.scale[-1]
    half = np.sqrt(np.abs(truth))
    curvature = np.linalg.eigvalsh(half[:, None] * moments.second * half[None]).max()
    eta = p.theta / (2 * max(np.abs(moments.cross).max(), curvature))
    t1 = growth_phases(moments, truth, step_size=eta, steps=10**6, alpha=p.alpha).t1
    steps = int(p.beyond * t1)
    phases = growth_phases(moments, truth, step_size=eta, steps=steps, alpha=p.alpha)
    start = tuple(jnp.full(p.d, p.alpha, jnp.float64) for _ in range(2))
    run = descend(
        moment_noise(moments, jnp.float64), start, step_size=eta, steps=steps, key=jax.random.fold_in(key, index),
        seeds=p.seeds, observe={"logs": _log_sizes}, progress=False,
    )  # fmt: skip
    lived = ~run.diverged
    seen = np.stack([np.asarray(x)[lived, -1].mean(0) for x in run.observed["logs"]])
    others = truth == 0
    every = (seen, phases.end, phases.two_phase(p.alpha, steps))
    simulated, phased, two = (x[:, others].ravel() for x in every)
    return simulated, phased, two, int((~lived).sum())


def _measure_growth(parameters: Growth, key: Key[Array, ""]) -> Measurement:
    p = parameters
    lost, found = 0, {}
    data = {}
    for name, causes, offset in (("one", 1, 0), ("several", p.causes, 1000)):
        rows = []
        for index in range(p.designs):
            simulated, phased, two, gone = _grow(p, causes, key, offset + index)
            lost += gone
            rows.append([np.corrcoef(simulated, x)[0, 1] for x in (phased, two)])
            if index == 0:
                data |= {f"simulated_{name}": (f"v_{name}", simulated), f"predicted_{name}": (f"v_{name}", phased)}
        found[name] = np.array(rows)
        data[f"correlation_{name}"] = (("design", "law"), found[name])
    one = statistics.median(found["one"][:, 1])
    several = statistics.median(found["several"][:, 0])
    checks = (
        Check("one cause, two phases: correlation with simulated log u", one[0], 1.0, one[1], Above(0.99)),
        Check(
            f"{p.causes} causes, a phase for each: correlation", several[0], 1.0, several[1], Above(0.99),
        ),
    )  # fmt: skip
    single = np.median(found["several"][:, 1])
    note = f"With {p.causes} causes and a single t1, the last arrival, the correlation is {single:.3f}."
    return Measurement(checks, xarray.Dataset(data), p.designs, lost, note)


def _draw_growth(measurement: Measurement, parameters: Growth) -> Any:
    figure, panels = style.new_figure(2)
    data = measurement.data
    for axes, name, title in zip(panels, ("one", "several"), ("one cause", f"{parameters.causes} causes"), strict=True):
        predicted, simulated = data[f"predicted_{name}"].values, data[f"simulated_{name}"].values
        ends = np.array([predicted.min(), predicted.max()])
        style.theory(axes, ends, ends, "equality")
        style.points(axes, predicted, simulated, None, "a variable: u or v")
        axes.set_title(title)
        axes.set_xlabel("predicted log size at the end")
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
        checks.append(Check(f"{name}: median coefficient error", middle, 0.0, spread, Below(bound)))
    share, spread = statistics.share(accepted["shift"] & (errors["shift"] > WRONG))
    checks.append(Check("shift: share accepted though wrong", share, 0.0, spread, Below(0.25)))
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


def _draw_designs(measurement: Measurement, parameters: Designs) -> Any:
    return compare(measurement.checks)


CLAIMS = (
    Claim(
        id="two-phase-law",
        paper="heterogeneity",
        place="beyond the paper: grouped data",
        statement="On grouped data a variable grows at one rate until the causes are fitted and at another afterwards; "
        "with several causes there is a phase for each.",
        equation="log u(T) = log alpha + t1 E log|1 + 2 eta c_e| + (T - t1) E log|1 + 2 eta s_e|",
        scales={"smoke": Growth(6), "default": Growth(40), "full": Growth(400)},
        measure=_measure_growth,
        draw=_draw_growth,
    ),
    Claim(
        id="invariant-regressor",
        paper="heterogeneity",
        place="beyond the paper: grouped data",
        statement="The heterogeneity flow with a test of invariance finds the invariant coefficients where children of "
        "y change their effect; where means shift it mostly finds none, and says so.",
        equation="d log u = -2 eta gbar - 2 eta rho Var_e(g_e)",
        scales={"smoke": Designs(20, 40), "default": Designs(60, 120), "full": Designs(400, 800)},
        measure=_measure_designs,
        draw=_draw_designs,
        long=True,
    ),
)
