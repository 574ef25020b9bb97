"""Which solution SGD finds: the invariant one with one environment a step, the mean or neither with pooled batches."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.claims import statistics
from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Above, Below, Check, Criterion, Within
from undertow.claims.sensing_runs import ends
from undertow.figures.compare import compare
from undertow.noise.laws import two_point
from undertow.noise.sensing import MatrixSensing


@dataclass(frozen=True)
class Both:
    """HeteroSGD and pooled SGD on the same problem."""

    seeds: int
    """Runs of each."""
    d: int = 40
    """Dimension of the matrices."""
    true_rank: int = 3
    """Directions of the invariant signal."""
    spurious_rank: int = 2
    """Directions of the spurious one."""
    mean: float = 0.5
    """Mean size of the spurious signal."""
    spread: float = 4.0
    """M: it is mean - M or mean + M."""
    m: int = 2800
    """Measurements a step; pooled SGD has twice as many."""
    step_size: float = 0.1
    """The paper's eta."""
    steps: int = 180
    """When the runs are looked at."""


@dataclass(frozen=True)
class Few:
    """Pooled SGD with few measurements a step."""

    seeds: int
    """Runs at each step size."""
    d: int = 30
    """Dimension of the matrices."""
    rank: int = 5
    """Directions of the invariant and of the spurious signal."""
    mean: float = 0.5
    """Mean size of the spurious signal."""
    spread: float = 4.0
    """M."""
    m: int = 80
    """Measurements a step."""
    time: float = 40.0
    """steps * step_size."""


@dataclass(frozen=True)
class Signals:
    """HeteroSGD and pooled SGD on an invariant signal with two different eigenvalues."""

    seeds: int
    """Runs of each."""
    second: float
    """The second eigenvalue; the first is 1."""
    steps: int
    """When the runs are looked at."""
    d: int = 40
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements a step."""
    spread: float = 8.0
    """M of the spurious law 1 +- M."""
    step_size: float = 0.05
    """The paper's eta."""


def _check(what: str, values: np.ndarray, predicted: float, criterion: Criterion) -> Check:
    middle, error = statistics.median(values)
    return Check(what, middle, predicted, error, criterion)


def _measure_both(parameters: Both, key: Key[Array, ""]) -> Measurement:
    p = parameters
    law = two_point(p.mean, p.spread, p.spurious_rank)
    hetero = MatrixSensing(p.d, p.m, law, rank=p.true_rank, dtype=jnp.float32)
    pooled = MatrixSensing(p.d, 2 * p.m, law, rank=p.true_rank, pooled=True, dtype=jnp.float32)
    one, lost = ends(hetero, p.step_size, p.steps, p.seeds, key)
    two, lost_too = ends(pooled, p.step_size, p.steps, p.seeds, jax.random.fold_in(key, 1))
    checks = (
        _check("one environment a step: spurious over its mean", one["spurious"] / p.mean, 0.0, Below(0.02)),
        _check("one environment a step: |UU' - A*|", one["to_invariant"], 0.0, Below(0.35)),
        _check("pooled: spurious over its mean", two["spurious"] / p.mean, 1.0, Within(0.1, 0.3)),
        _check("pooled: |UU' - A*|", two["to_invariant"], p.mean * np.sqrt(p.spurious_rank), Above(0.65)),
        _check("pooled: |UU' - A* - mean A(e)|", two["to_mean"], 0.0, Below(0.3)),
    )
    data = xarray.Dataset(
        {f"{a}_{n}": (f"{a}_seed", v) for a, s in (("one", one), ("pooled", two)) for n, v in s.items()}
    )
    return Measurement(checks, data, p.seeds, lost + lost_too)


def _measure_few(parameters: Few, key: Key[Array, ""]) -> Measurement:
    p = parameters
    sensing = MatrixSensing(p.d, p.m, two_point(p.mean, p.spread, p.rank), rank=p.rank, pooled=True, dtype=jnp.float32)
    checks, lost, medians = [], 0, []
    for index, (eta, low, high) in enumerate(((0.01, 1.2, 1.6), (0.05, 1.9, 2.6), (0.1, 2.5, 3.5))):
        seen, gone = ends(sensing, eta, round(p.time / eta), p.seeds, jax.random.fold_in(key, index))
        lost += gone
        middle = (low + high) / 2
        checks.append(
            _check(f"step size {eta:g}: |UU' - A*|", seen["to_invariant"], middle, Within(middle - low, middle))
        )
        checks.append(_check(f"step size {eta:g}: |UU' - A* - mean A(e)|", seen["to_mean"], 0.0, Above(0.5)))
        medians.append(checks[-2].measured)
    return Measurement(tuple(checks), xarray.Dataset({"median": ("step_size", medians)}), p.seeds, lost)


def _measure_signals(parameters: Signals, key: Key[Array, ""]) -> Measurement:
    p = parameters
    spectrum = jnp.array([1.0, p.second], jnp.float32)
    size = float(jnp.linalg.norm(spectrum))
    bound = 0.15 if p.second > 0 else 0.2
    errors, lost = [], 0
    for index, pooled in enumerate((False, True)):
        law = two_point(1.0, p.spread)
        sensing = MatrixSensing(p.d, p.m, law, spectrum=spectrum, pooled=pooled, dtype=jnp.float32)
        seen, gone = ends(sensing, p.step_size, p.steps, p.seeds, jax.random.fold_in(key, index), signed=p.second < 0)
        errors.append(seen["to_invariant"] / size)
        lost += gone
    checks = (
        _check("one environment a step: relative error", errors[0], 0.0, Below(bound)),
        _check("pooled: relative error", errors[1], 1 / size, Above(0.5)),
    )
    data = xarray.Dataset({"one": ("seed", errors[0]), "pooled": ("pooled_seed", errors[1])})
    return Measurement(checks, data, p.seeds, lost)


def _draw(measurement: Measurement, parameters: Any) -> Any:
    return compare(measurement.checks)


CLAIMS = (
    Claim(
        id="invariant-or-mean",
        paper="heterogeneity",
        place="Figure 5, Theorem 2 against Theorem 3",
        statement="One environment a step finds the invariant matrix; pooled batches of the same data find the "
        "invariant one plus the mean spurious one.",
        equation="UU' -> A*  against  UU' -> A* + E A(e)",
        scales={"smoke": Both(32), "default": Both(100), "full": Both(1000)},
        measure=_measure_both,
        draw=_draw,
        accelerated=True,
    ),
    Claim(
        id="pooled-near-neither",
        paper="heterogeneity",
        place="Figure 6",
        statement="With few measurements a step, pooled SGD ends near neither solution, the farther the larger the "
        "step.",
        equation="|UU' - A*| at m = 80, d = 30",
        scales={"smoke": Few(16), "default": Few(100), "full": Few(1000)},
        measure=_measure_few,
        draw=_draw,
        accelerated=True,
    ),
    Claim(
        id="condition-number",
        paper="heterogeneity",
        place="Appendix D",
        statement="An invariant matrix with eigenvalues 1 and 1/2 is found as well.",
        equation="A* = diag(1, 1/2)",
        scales={"smoke": Signals(32, 0.5, 400), "default": Signals(100, 0.5, 400), "full": Signals(1000, 0.5, 400)},
        measure=_measure_signals,
        draw=_draw,
        accelerated=True,
    ),
    Claim(
        id="indefinite-signal",
        paper="heterogeneity",
        place="Section 3.1, in one line: UU' - VV'",
        statement="With UU' - VV' an invariant matrix with eigenvalues of both signs is found.",
        equation="A* = diag(1, -1)",
        scales={"smoke": Signals(32, -1.0, 200), "default": Signals(100, -1.0, 200), "full": Signals(1000, -1.0, 200)},
        measure=_measure_signals,
        draw=_draw,
        accelerated=True,
    ),
)
