"""Lines of the paper that cannot stand as printed, each with the number that shows it."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.claims import statistics
from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Below, Check, Within
from undertow.claims.sensing_runs import ends
from undertow.figures.compare import compare
from undertow.noise.laws import two_point
from undertow.noise.sensing import MatrixSensing


@dataclass(frozen=True)
class Batches:
    """Batches of explicit measurements of a fixed matrix."""

    draws: int
    """How many batches."""
    m: int = 10
    """Measurements in a batch."""
    d: int = 4
    """Dimension of the matrices."""


@dataclass(frozen=True)
class Fit:
    """Measurements of A* alone, rank r, and the fitted model at UU' = A*."""

    draws: int
    """How many measurements."""
    rank: int = 2
    """r."""
    d: int = 6
    """Dimension of the matrices."""


@dataclass(frozen=True)
class Doubled:
    """HeteroSGD on y = <X, A* + A(e)> with both readings of A(e)."""

    seeds: int
    """Runs of each."""
    d: int = 20
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements a step."""
    spread: float = 8.0
    """M of the spurious law 1 +- M."""
    step_size: float = 0.05
    """The paper's eta."""
    steps: int = 200
    """When the runs are looked at."""


@dataclass(frozen=True)
class Controller:
    """The controller sequence q of Definition 4 with L = alpha, one direction, two-point law mean +- M."""

    runs: int
    """Independent sequences."""
    moments: int
    """Steps drawn for the moment of Lemma 7."""
    mean: float = 1.0
    """Mean of the spurious signal."""
    spread: float = 21.0
    """M, large enough for the supermartingale of Lemma 7."""
    step_size: float = 0.05
    """eta."""
    steps: int = 100
    """T2."""
    violation: float = 1e-3
    """p: the level is p^-1.5 L."""


def _rng(key: Key[Array, ""]) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _measure_symmetric(parameters: Batches, key: Key[Array, ""]) -> Measurement:
    p = parameters
    white = _rng(key).standard_normal((p.draws, p.m, p.d, p.d))
    mirrored = np.triu(white) + np.swapaxes(np.triu(white, 1), 2, 3)  # symmetric, every entry N(0, 1)
    target = np.zeros((p.d, p.d))
    target[0, 1] = target[1, 0] = np.sqrt(0.5)  # |M| = 1, off the diagonal
    squares = statistics.mean((np.einsum("nmij,ij->nm", mirrored, target) ** 2).mean(1))

    def step(x: np.ndarray) -> np.ndarray:
        return np.einsum("nm,nmij->nij", np.einsum("nmij,ij->nm", x, target), x) / p.m

    full = step(white)
    goe = step((white + np.swapaxes(white, 2, 3)) / 2)
    halves = (full + np.swapaxes(full, 1, 2)) / 2  # full X, symmetrised in the step
    noise = {name: statistics.mean(g[:, 2, 3] ** 2) for name, g in (("full", full), ("goe", goe), ("half", halves))}
    skew = statistics.mean((full[:, 2, 3] - full[:, 3, 2]) ** 2)
    told = 1 / (2 * p.m)  # the variance of an entry of G off the diagonal and off M, symmetric X
    checks = (
        Check(
            "symmetric X with N(0,1) entries: E<X, M>^2 over |M|^2, M off the diagonal", squares[0], 2.0, squares[1],
            Within(0.0, 0.2), 1.0,
        ),
        *(
            Check(f"{name}: noise of G off the diagonal", noise[which][0] / told, want, noise[which][1] / told,
                  Within(0.0, 0.3))
            for name, which, want in (
                ("N(0,1/2) off the diagonal", "goe", 1.0), ("full X, symmetrised in the step", "half", 1.0),
                ("full X as it is", "full", 2.0),
            )
        ),
        Check("full X as it is: variance of G_ij - G_ji", skew[0] / told, 4.0, skew[1] / told, Within(0.0, 0.6)),
    )  # fmt: skip
    return Measurement(checks, xarray.Dataset({"ratio": ("check", [c.measured for c in checks])}), p.draws)


def _measure_model(parameters: Fit, key: Key[Array, ""]) -> Measurement:
    p = parameters
    white = _rng(key).standard_normal((p.draws, p.d, p.d))
    x = (white + np.swapaxes(white, 1, 2)) / 2
    signal = np.diag([1.0] * p.rank + [0.0] * (p.d - p.rank))
    y = np.einsum("nij,ij->n", x, signal)
    explained = lambda fitted: float(1 - ((y - fitted) ** 2).mean() / (y**2).mean())
    # y has variance r, and the model as printed says <A*, A*> = r whatever X is
    as_printed, right = (
        explained(np.full_like(y, np.sum(signal * signal))),
        explained(np.einsum("nij,ij->n", x, signal)),
    )
    what = "share of y's variance that the model explains at UU' = A*"
    check = Check(what, right, 1.0, 0.0, Within(1e-9, 0.1), float(-p.rank))
    return Measurement((check,), xarray.Dataset({"printed": as_printed}), p.draws)


def _measure_doubled(parameters: Doubled, key: Key[Array, ""]) -> Measurement:
    p = parameters
    sizes, lost = [], 0
    for index, size in enumerate((1.0, 2.0)):
        spectrum = jnp.array([size], jnp.float32)
        sensing = MatrixSensing(p.d, p.m, two_point(1.0, p.spread), spectrum=spectrum, dtype=jnp.float32)
        seen, gone = ends(sensing, p.step_size, p.steps, p.seeds, jax.random.fold_in(key, index))
        sizes.append(statistics.median(size * seen["true"]))
        lost += gone
    (one, one_error), (two, two_error) = sizes
    checks = (
        Check("A(e) = A* + s vv' put into (1): learnt along u", two, 2.0, two_error, Within(0.05, 0.3), 1.0),
        Check("A(e) = s vv': learnt along u", one, 1.0, one_error, Within(0.05, 0.2)),
    )
    return Measurement(checks, xarray.Dataset({"learnt": ("reading", [one, two])}), p.seeds, lost)


def _factors(parameters: Controller) -> np.ndarray:
    """1 + eta s + 2 eta for both values of s."""
    p = parameters
    return 1 + p.step_size * (p.mean + p.spread * np.array([-1.0, 1.0])) + 2 * p.step_size


def _measure_controller(parameters: Controller, key: Key[Array, ""]) -> Measurement:
    p = parameters
    rng = _rng(key)
    level = p.violation**-1.5
    q = np.ones(p.runs)  # over L = alpha
    under, over = q <= level, q >= level
    for _ in range(p.steps):
        q = np.where(over, q, np.maximum(q * rng.choice(_factors(p), p.runs), 1.0))
        under |= q <= level
        over |= q >= level
    bound = p.steps * p.violation
    printed, right = statistics.share(under), statistics.share(over)
    moment = statistics.mean(rng.choice(_factors(p), p.moments) ** (2 / 3))  # of X_{k,t+1}/X_{k,t}, by Definition 5
    told = float((_factors(p) ** (2 / 3)).mean())
    bracket = float(((_factors(p) - 2 * p.step_size + 2 * p.step_size**2) ** (2 / 3)).mean())
    checks = (
        Check("(49): probability of the event as printed, q <= level", printed[0], 1.0, 0.0, Within(1e-9, 0.1), bound),
        Check("(49): probability of q >= level", right[0], bound, right[1], Below(bound)),
        Check("(42): E[X_{t+1}^(2/3)] over X_t^(2/3)", moment[0], told, moment[1], Within(1e-9, 0.1), bracket),
        Check("Lemma 7: it is below 1", moment[0], told, moment[1], Below(1.0)),
    )
    return Measurement(checks, xarray.Dataset({"over": right[0], "moment": moment[0]}), p.runs)


def _draw(measurement: Measurement, parameters: Any) -> Any:
    return compare(measurement.checks)


CLAIMS = (
    Claim(
        id="symmetric-measurements",
        paper="heterogeneity",
        place="Section 5 against Eq. (1) and Definition 1",
        statement="Measurements are symmetric with i.i.d. N(0,1) elements. They cannot be: such X violate the "
        "isometry (8). Off the diagonal the variance must be 1/2, which is full X symmetrised in the step; full X "
        "used as it is doubles the noise there and makes G nonsymmetric.",
        equation="E<X, M>^2 = |M|^2 for symmetric M",
        scales={"smoke": Batches(20_000), "default": Batches(100_000), "full": Batches(400_000)},
        measure=_measure_symmetric,
        draw=_draw,
    ),
    Claim(
        id="fitted-model",
        paper="heterogeneity",
        place="Section 3.1, the parametrisation",
        statement="The fitted model is y = <A, UU'>. It is y = <X, UU'>: the line as printed does not see X.",
        equation="y = <X, UU'>",
        scales={"smoke": Fit(20_000), "default": Fit(100_000), "full": Fit(1_000_000)},
        measure=_measure_model,
        draw=_draw,
    ),
    Claim(
        id="spurious-signal-alone",
        paper="heterogeneity",
        place="Section 5 and Appendix B.2 against Eq. (1)",
        statement="Environments have A(e) = A* + s vv'. With (1), y = <X, A* + A(e)>, that counts A* twice and its "
        "signal is learnt as 2; the simulations are those of A(e) = s vv'.",
        equation="y = <X, A* + s vv'>",
        scales={"smoke": Doubled(32), "default": Doubled(128), "full": Doubled(1000)},
        measure=_measure_doubled,
        draw=_draw,
        accelerated=True,
    ),
    Claim(
        id="controller-event",
        paper="heterogeneity",
        place="Eq. (42) and (49)",
        statement="The proof that the spurious part stays small: a step multiplies X^(2/3) by a mean below 1, so the "
        "controller crosses its level rarely. The mean is E(1 + eta S + 2 eta)^(2/3), not with eta (S + 2 eta); and "
        "what has probability at most T2 p is to be above the level. Below it all start.",
        equation="E[X_{t+1}^(2/3)] = E[(1 + eta S + 2 eta)^(2/3)] X_t^(2/3),  "
        "P(q >= p^-1.5 r2^1.5 L at some t <= T2) <= T2 p",
        scales={
            "smoke": Controller(20_000, 200_000),
            "default": Controller(200_000, 1_000_000),
            "full": Controller(1_000_000, 10_000_000),
        },
        measure=_measure_controller,
        draw=_draw,
    ),
)
