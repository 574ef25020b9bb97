"""The solution that SGD finds: the invariant one with one environment per step, the mean one or neither if pooled."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.figures import style
from undertow.papers.heterogeneity._runs import draw_learnt, ends, learnt_columns, noise_square
from undertow.sensing.laws import two_point
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Criterion, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_STEP_SIZES = (0.01, 0.05, 0.1)


REFERENCE = 32
"""Number of reference runs with Gaussian noise, for the runs with few measurements per step."""


@dataclass(frozen=True)
class Both:
    """HeteroSGD and pooled SGD on the same problem."""

    seeds: int
    """Number of runs of each algorithm."""
    d: int = 40
    """Dimension of the matrices."""
    true_rank: int = 3
    """Rank of the invariant signal."""
    spurious_rank: int = 2
    """Rank of the spurious signal."""
    mean: float = 0.5
    """Mean size of the spurious signal."""
    spread: float = 4.0
    """Spread M of the spurious signal, which is mean - M or mean + M."""
    m: int = 2800
    """Measurements per step of HeteroSGD; pooled SGD has twice as many."""
    step_size: float = 0.1
    """Step size η of the paper."""
    steps: int = 180
    """Number of steps of each run."""


@dataclass(frozen=True)
class Few:
    """Pooled SGD with few measurements per step."""

    seeds: int
    """Number of runs at each step size."""
    d: int = 30
    """Dimension of the matrices."""
    rank: int = 5
    """Rank of the invariant and of the spurious signal."""
    mean: float = 0.5
    """Mean size of the spurious signal."""
    spread: float = 4.0
    """Spread M of the spurious signal."""
    m: int = 80
    """Measurements per step."""
    time: float = 40.0
    """Length of each run in time, steps * step_size."""
    relaxed: float = 10.0
    """Length in time of the reference runs with Gaussian noise, which start at the mean solution."""


@dataclass(frozen=True)
class Signals:
    """HeteroSGD and pooled SGD on invariant signals with the eigenvalues 1 and 1/κ."""

    seeds: int
    """Number of runs of each algorithm."""
    numbers: int
    """Number of condition numbers κ: 2, 4, 8, ..."""
    d: int = 40
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements per step."""
    spread: float = 8.0
    """M of the spurious law 1 ± M."""
    step_size: float = 0.05
    """Step size η of the paper."""
    time: float = 10.0
    """Length of each run, steps * step_size/κ."""


@dataclass(frozen=True)
class Signed:
    """HeteroSGD and pooled SGD with UU' - VV' on an invariant signal with the eigenvalues 1 and -1."""

    seeds: int
    """Number of runs of each algorithm."""
    d: int = 40
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements per step."""
    spread: float = 8.0
    """M of the spurious law 1 ± M."""
    step_size: float = 0.05
    """Step size η of the paper."""
    steps: int = 200
    """Number of steps of each run."""


def _check(what: str, values: np.ndarray, predicted: float, criterion: Criterion, alternative: float) -> Check:
    middle, error = statistics.median(values)
    return Check(what, middle, predicted, error, criterion, alternative=alternative)


def _measure_both(parameters: Both, key: Key[Array, ""]) -> Measurement:
    p = parameters
    law = two_point(p.mean, p.spread, p.spurious_rank)
    hetero = MatrixSensing(p.d, p.m, law, rank=p.true_rank, dtype=jnp.float32)
    pooled = MatrixSensing(p.d, 2 * p.m, law, rank=p.true_rank, pooled=True, dtype=jnp.float32)
    hetero_ends, diverged = ends(hetero, p.step_size, p.steps, p.seeds, key)
    pooled_ends, diverged_pooled = ends(pooled, p.step_size, p.steps, p.seeds, jax.random.fold_in(key, 1))
    true, size = [1.0] * p.true_rank, p.mean**2 * p.spurious_rank
    square = p.spread**2 * p.spurious_rank
    # one environment per step: nothing is learnt along the spurious directions, so the residual contains all of A(e)
    near = noise_square(true, p.d - p.spurious_rank, p.m, p.step_size, square + size)
    around = noise_square([*true, *[p.mean] * p.spurious_rank], p.d, 2 * p.m, p.step_size, square)
    close, far, mean = np.sqrt(near), np.sqrt(size + around), np.sqrt(around)
    checks = (
        _check(
            "one environment per step: median spurious signal / its mean",
            hetero_ends["spurious"] / p.mean,
            0.0,
            Below(0.02),
            1.0,
        ),
        _check(
            "one environment per step: median |UU' - A*|", hetero_ends["to_invariant"], close, Within(0.04, 0.15), far
        ),
        _check(
            "pooled: median spurious signal / its mean", pooled_ends["spurious"] / p.mean, 1.0, Within(0.1, 0.3), 0.0
        ),
        _check("pooled: median |UU' - A*|", pooled_ends["to_invariant"], far, Within(0.04, 0.15), close),
        _check("pooled: median |UU' - A* - mean A(e)|", pooled_ends["to_mean"], mean, Within(0.04, 0.15), far),
    )
    data = xarray.Dataset(
        {f"{a}_{n}": (f"{a}_seed", v) for a, s in (("one", hetero_ends), ("pooled", pooled_ends)) for n, v in s.items()}
    )
    return Measurement(checks, data, p.seeds, diverged + diverged_pooled)


def _with_gaussian_noise(parameters: Few, eta: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the distances of runs whose step matrix G is Gaussian, with the mean and the covariance of pooled SGD.

    Given D = UU' - A* - E A(e), the covariance of G is that of symmetric measurements of size (|D|^2 + r M^2)/m, and
    2 M^2/m along the spurious signal, 1/m along D: fourth moments of Gaussians. Runs start at the mean solution.
    """
    p = parameters
    axes = np.arange(p.d)
    true, spurious = (axes < p.rank).astype(float), ((axes >= p.rank) & (axes < 2 * p.rank)).astype(float)
    mean = np.diag(true + p.mean * spurious)
    u = np.broadcast_to(np.sqrt(mean), (REFERENCE, p.d, p.d))
    normal = lambda: rng.standard_normal((REFERENCE, 1, 1))
    for _ in range(round(p.relaxed / eta)):
        residual = u @ np.swapaxes(u, 1, 2) - mean[None]
        size = (residual**2).sum((1, 2), keepdims=True) + p.rank * p.spread**2
        white = rng.standard_normal(u.shape)
        noise = np.sqrt(size) * (white + np.swapaxes(white, 1, 2)) / 2 + normal() * residual
        noise = noise + np.sqrt(2) * p.spread * normal() * np.diag(spurious)[None]
        u = u - eta * (residual + noise / np.sqrt(p.m)) @ u
    product = u @ np.swapaxes(u, 1, 2)
    far = lambda target: np.linalg.norm(product - target[None], axis=(1, 2))
    return {"to_invariant": far(np.diag(true)), "to_mean": far(mean)}


def _measure_few(parameters: Few, key: Key[Array, ""]) -> Measurement:
    p = parameters
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    sensing = MatrixSensing(p.d, p.m, two_point(p.mean, p.spread, p.rank), rank=p.rank, pooled=True, dtype=jnp.float32)
    checks, diverged, medians = [], 0, []
    many = {"to_invariant": p.mean * np.sqrt(p.rank), "to_mean": 0.0}
    words = {"to_invariant": "median |UU' - A*|", "to_mean": "median |UU' - A* - mean A(e)|"}
    for index, eta in enumerate(FEW_STEP_SIZES):
        measures, failed = ends(sensing, eta, round(p.time / eta), p.seeds, jax.random.fold_in(key, index))
        diverged += failed
        reference = _with_gaussian_noise(p, eta, rng)
        for name, other in many.items():
            (middle, error), (predicted, reference_error) = (
                statistics.median(measures[name]),
                statistics.median(reference[name]),
            )
            what, both = f"step size {eta:g}: {words[name]}", float(np.hypot(error, reference_error))
            # at the smallest step size only the distance to the mean solution separates the claim from the alternative
            far = other if name == "to_mean" or eta > 0.01 else None
            checks.append(Check(what, middle, predicted, both, Within(0.1, 1.0), alternative=far))
        medians.append(checks[-2].measured)
    return Measurement(tuple(checks), xarray.Dataset({"median": ("step_size", medians)}), p.seeds, diverged)


def _both_kinds(
    parameters: Signals | Signed, spectrum: list[float], steps: int, key: Key[Array, ""]
) -> tuple[list[dict[str, np.ndarray]], int]:
    """Return the measures with one environment per step and pooled, and the number of diverged runs."""
    p = parameters
    kinds, diverged = [], 0
    for pooled in (False, True):
        law = two_point(1.0, p.spread)
        values = jnp.array(spectrum, jnp.float32)
        sensing = MatrixSensing(p.d, p.m, law, spectrum=values, pooled=pooled, dtype=jnp.float32)
        own = jax.random.fold_in(key, int(pooled))
        measures, failed = ends(sensing, p.step_size, steps, p.seeds, own, signed=min(spectrum) < 0)
        kinds.append(measures)
        diverged += failed
    return kinds, diverged


def _relative(measures: list[dict[str, np.ndarray]], spectrum: list[float]) -> list[np.ndarray]:
    """Return |UU' - A*|/|A*| of each kind of runs."""
    return [one["to_invariant"] / np.linalg.norm(spectrum) for one in measures]


def _compared(
    parameters: Signals | Signed, spectrum: list[float], errors: list[np.ndarray], words: str
) -> tuple[Check, Check]:
    """Return both errors beside the stationary ones; alternatives: the first eigenvalue alone, and A* for both."""
    p = parameters
    size = float(np.linalg.norm(spectrum))
    noise = lambda learnt, d, square: noise_square(learnt, d, p.m, p.step_size, square)
    square = 1 + p.spread**2
    right = np.sqrt(noise(spectrum, p.d - 1, square)) / size
    missed = np.sqrt(spectrum[1] ** 2 + noise(spectrum[:1], p.d - 1, square + spectrum[1] ** 2)) / size
    pooled = np.sqrt(1 + noise([*spectrum, 1.0], p.d, p.spread**2)) / size
    return (
        _check(f"{words}one environment per step: median |UU' - A*|/|A*|", errors[0], right, Within(0.02, 0.1), missed),
        _check(f"{words}pooled: median |UU' - A*|/|A*|", errors[1], pooled, Within(0.05, 0.3), right),
    )


def _measure_signals(parameters: Signals, key: Key[Array, ""]) -> Measurement:
    p = parameters
    checks, medians, diverged = [], [], 0
    numbers = 2 ** np.arange(1, p.numbers + 1)
    for index, kappa in enumerate(numbers):
        spectrum = [1.0, 1 / float(kappa)]
        steps = round(p.time * kappa / p.step_size)
        measures, failed = _both_kinds(p, spectrum, steps, jax.random.fold_in(key, index))
        errors = _relative(measures, spectrum)
        checks += _compared(p, spectrum, errors, f"κ = {kappa}, ")
        medians.append([float(np.median(x)) for x in errors])
        diverged += failed
    data = xarray.Dataset({"median": (("kappa", "kind"), medians)}, coords={"kappa": numbers})
    return Measurement(tuple(checks), data, p.seeds, diverged)


def _measure_signed(parameters: Signed, key: Key[Array, ""]) -> Measurement:
    spectrum = [1.0, -1.0]
    measures, diverged = _both_kinds(parameters, spectrum, parameters.steps, key)
    checks = _compared(parameters, spectrum, _relative(measures, spectrum), "")
    columns = learnt_columns(dict(zip(("one", "pooled"), measures, strict=True)))
    return Measurement(checks, xarray.Dataset(columns), parameters.seeds, diverged)


def _draw_signed(measurement: Measurement, parameters: Signed) -> "Figure":
    figure, (axes,) = style.new_figure()
    draw_learnt(axes, measurement.data)
    axes.axvline(0.5, color=style.COLOURS["green"], lw=1.2, label="negative eigenvalue not found")
    axes.set(xlabel="learnt true signal, mean over both eigenvalues")
    axes.legend()
    return figure


def _draw_both(measurement: Measurement, parameters: Both) -> "Figure":
    """Draw every run by its distances to the two solutions; lines are the predicted distances."""
    figure, (axes,) = style.new_figure()
    data, checks = measurement.data, measurement.checks
    blue, red = (style.COLOURS[name] for name in ("blue", "red"))
    axes.axvline(checks[1].predicted, color=blue, lw=1.2, label="predicted, one environment per step")
    axes.axvline(checks[3].predicted, color=red, lw=1.2, label="predicted, pooled")
    axes.axhline(checks[4].predicted, color=red, lw=1.2)
    kinds = (("one", "blue", "o", "runs, one environment per step"), ("pooled", "red", "s", "runs, pooled"))
    for name, colour, marker, label in kinds:
        distances = (style.some(data[f"{name}_{to}"]) for to in ("to_invariant", "to_mean"))
        style.points(axes, *distances, None, label, colour, marker)
    axes.set(xlabel="distance to A*", ylabel="distance to A* + E A(e)", xlim=(0, None), ylim=(0, None))
    axes.legend()
    return figure


def _draw_few(measurement: Measurement, parameters: Few) -> "Figure":
    figure, (axes,) = style.new_figure()
    kinds = (("to A*", "blue", "o"), ("to A* + E A(e)", "red", "s"))
    for index, (name, colour, marker) in enumerate(kinds):
        checks = measurement.checks[index::2]
        style.theory(axes, FEW_STEP_SIZES, [c.predicted for c in checks], f"{name}, Gaussian noise", colour)
        measured, errors = [c.measured for c in checks], [c.uncertainty for c in checks]
        style.points(axes, FEW_STEP_SIZES, measured, errors, f"{name}, pooled SGD", colour, marker)
    axes.set(xlabel="step size η", ylabel="median distance", ylim=(0, None))
    axes.legend()
    return figure


def _draw_signals(measurement: Measurement, parameters: Signals) -> "Figure":
    figure, (axes,) = style.new_figure()
    kinds = (("one environment per step", "blue", "o"), ("pooled", "red", "s"))
    for index, (name, colour, marker) in enumerate(kinds):
        checks, kappas = measurement.checks[index::2], measurement.data.kappa
        style.theory(axes, kappas, [c.predicted for c in checks], f"{name}, predicted", colour)
        style.points(axes, kappas, [c.measured for c in checks], [c.uncertainty for c in checks], name, colour, marker)
    axes.set(xlabel="condition number κ", ylabel="median |UU' − A*|/|A*|", xscale="log", ylim=(0, None))
    axes.set_xticks(kappas.values, [f"{kappa:g}" for kappa in kappas.values], minor=False)
    axes.minorticks_off()
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="invariant-or-mean",
        paper="heterogeneity",
        place="Figure 5, Theorem 2 against Theorem 3",
        statement="SGD with one environment per step finds the invariant matrix. Pooled batches of the same data find "
        "the sum of the invariant and the mean spurious matrix.",
        equation="UU' → A*  against  UU' → A* + E A(e)",
        alternative="The sampling of batches does not matter: one environment per step and pooled batches find the "
        "same solution.",
        rests_on=("exact-law",),
        scales={"smoke": Both(32), "default": Both(100), "full": Both(1000)},
        measure=_measure_both,
        draw=_draw_both,
        accelerated=True,
    ),
    Claim(
        id="pooled-near-neither",
        paper="heterogeneity",
        place="Figure 6",
        statement="With few measurements per step, pooled SGD ends near neither solution, and farther away for a "
        "larger step size. Gaussian noise of the same covariance gives the same distances.",
        equation="|UU' - A*| and |UU' - A* - E A(e)| at m = 80, d = 30",
        alternative="Pooled SGD ends at the mean solution for every step size, as with many measurements.",
        rests_on=("exact-law",),
        controls=True,
        scales={"smoke": Few(40), "default": Few(100), "full": Few(1000)},
        measure=_measure_few,
        draw=_draw_few,
        accelerated=True,
    ),
    Claim(
        id="condition-number",
        paper="heterogeneity",
        place="Appendix D, Theorem 8",
        statement="HeteroSGD also finds an invariant matrix with the eigenvalues 1 and 1/κ, in κ times as many steps, "
        "up to the stationary error that measurement noise causes.",
        equation="A* = diag(1, 1/κ),  |UU' - A*|² = ∑_ij η (l_i + l_j) F (1 + δ_ij)/(2 m (2 - η (l_i + "
        "l_j))),  F = E s²",
        alternative="The smaller eigenvalue is not found: the error is that eigenvalue.",
        rests_on=("recovery-rate",),
        scales={"smoke": Signals(24, 2, d=20), "default": Signals(100, 3), "full": Signals(1000, 3)},
        measure=_measure_signals,
        draw=_draw_signals,
        accelerated=True,
    ),
    Claim(
        id="indefinite-signal",
        paper="heterogeneity",
        place="Section 3.1, in one line: UU' - VV'",
        statement="With the parametrisation UU' - VV', HeteroSGD finds an invariant matrix with eigenvalues of both "
        "signs.",
        equation="A* = diag(1, -1)",
        alternative="The negative eigenvalue is not found, as with UU' alone.",
        scales={"smoke": Signed(16), "default": Signed(100), "full": Signed(1000)},
        measure=_measure_signed,
        draw=_draw_signed,
        accelerated=True,
    ),
)
