"""Which solution SGD finds: the invariant one with one environment a step, the mean or neither with pooled batches."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.papers.heterogeneity._runs import ends, noise_square
from undertow.sensing.laws import two_point
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Criterion, Within

REFERENCE = 32
"""Runs with Gaussian noise that those of few measurements are compared with."""


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
    relaxed: float = 10.0
    """The same for the runs with Gaussian noise, which start at the mean solution."""


@dataclass(frozen=True)
class Signals:
    """HeteroSGD and pooled SGD on invariant signals with the eigenvalues 1 and 1/kappa."""

    seeds: int
    """Runs of each."""
    numbers: int
    """How many condition numbers kappa: 2, 4, 8, ..."""
    d: int = 40
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements a step."""
    spread: float = 8.0
    """M of the spurious law 1 +- M."""
    step_size: float = 0.05
    """The paper's eta."""
    time: float = 10.0
    """steps * step_size/kappa."""


@dataclass(frozen=True)
class Signed:
    """HeteroSGD and pooled SGD with UU' - VV' on an invariant signal with the eigenvalues 1 and -1."""

    seeds: int
    """Runs of each."""
    d: int = 40
    """Dimension of the matrices."""
    m: int = 8000
    """Measurements a step."""
    spread: float = 8.0
    """M of the spurious law 1 +- M."""
    step_size: float = 0.05
    """The paper's eta."""
    steps: int = 200
    """When the runs are looked at."""


def _check(what: str, values: np.ndarray, predicted: float, criterion: Criterion, alternative: float) -> Check:
    middle, error = statistics.median(values)
    return Check(what, middle, predicted, error, criterion, alternative=alternative)


def _measure_both(parameters: Both, key: Key[Array, ""]) -> Measurement:
    p = parameters
    law = two_point(p.mean, p.spread, p.spurious_rank)
    hetero = MatrixSensing(p.d, p.m, law, rank=p.true_rank, dtype=jnp.float32)
    pooled = MatrixSensing(p.d, 2 * p.m, law, rank=p.true_rank, pooled=True, dtype=jnp.float32)
    one, lost = ends(hetero, p.step_size, p.steps, p.seeds, key)
    two, lost_too = ends(pooled, p.step_size, p.steps, p.seeds, jax.random.fold_in(key, 1))
    true, size = [1.0] * p.true_rank, p.mean**2 * p.spurious_rank
    square = p.spread**2 * p.spurious_rank
    # one environment a step: the spurious directions hold nothing, and the residual has the whole of A(e)
    near = noise_square(true, p.d - p.spurious_rank, p.m, p.step_size, square + size)
    around = noise_square([*true, *[p.mean] * p.spurious_rank], p.d, 2 * p.m, p.step_size, square)
    close, far, mean = np.sqrt(near), np.sqrt(size + around), np.sqrt(around)
    checks = (
        _check("one environment a step: spurious over its mean", one["spurious"] / p.mean, 0.0, Below(0.02), 1.0),
        _check("one environment a step: |UU' - A*|", one["to_invariant"], close, Within(0.04, 0.15), far),
        _check("pooled: spurious over its mean", two["spurious"] / p.mean, 1.0, Within(0.1, 0.3), 0.0),
        _check("pooled: |UU' - A*|", two["to_invariant"], far, Within(0.04, 0.15), close),
        _check("pooled: |UU' - A* - mean A(e)|", two["to_mean"], mean, Within(0.04, 0.15), far),
    )
    data = xarray.Dataset(
        {f"{a}_{n}": (f"{a}_seed", v) for a, s in (("one", one), ("pooled", two)) for n, v in s.items()}
    )
    return Measurement(checks, data, p.seeds, lost + lost_too)


def _with_gaussian_noise(parameters: Few, eta: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The distances of runs whose step matrix G is Gaussian, with the mean and the covariance of pooled SGD.

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
    checks, lost, medians = [], 0, []
    many = {"to_invariant": p.mean * np.sqrt(p.rank), "to_mean": 0.0}
    words = {"to_invariant": "|UU' - A*|", "to_mean": "|UU' - A* - mean A(e)|"}
    for index, eta in enumerate((0.01, 0.05, 0.1)):
        seen, gone = ends(sensing, eta, round(p.time / eta), p.seeds, jax.random.fold_in(key, index))
        lost += gone
        told = _with_gaussian_noise(p, eta, rng)
        for name, other in many.items():
            (middle, error), (want, doubt) = statistics.median(seen[name]), statistics.median(told[name])
            what, both = f"step size {eta:g}: {words[name]}", float(np.hypot(error, doubt))
            # at the least step the distance to A* hardly grows: there the one to the mean solution decides
            far = other if name == "to_mean" or eta > 0.01 else None
            checks.append(Check(what, middle, want, both, Within(0.1, 1.0), alternative=far))
        medians.append(checks[-2].measured)
    return Measurement(tuple(checks), xarray.Dataset({"median": ("step_size", medians)}), p.seeds, lost)


def _relative(
    parameters: Signals | Signed, spectrum: list[float], steps: int, key: Key[Array, ""]
) -> tuple[list[np.ndarray], int]:
    """|UU' - A*|/|A*| of the runs with one environment a step, and of the pooled ones; and how many diverged."""
    p = parameters
    errors, lost = [], 0
    for pooled in (False, True):
        law = two_point(1.0, p.spread)
        values = jnp.array(spectrum, jnp.float32)
        sensing = MatrixSensing(p.d, p.m, law, spectrum=values, pooled=pooled, dtype=jnp.float32)
        own = jax.random.fold_in(key, int(pooled))
        seen, gone = ends(sensing, p.step_size, steps, p.seeds, own, signed=min(spectrum) < 0)
        errors.append(seen["to_invariant"] / np.linalg.norm(spectrum))
        lost += gone
    return errors, lost


def _compared(
    parameters: Signals | Signed, spectrum: list[float], found: list[np.ndarray], words: str
) -> tuple[Check, Check]:
    """Both errors against what noise leaves; the alternatives are the first eigenvalue alone, and A* found by both."""
    p = parameters
    size = float(np.linalg.norm(spectrum))
    noise = lambda learnt, d, square: noise_square(learnt, d, p.m, p.step_size, square)
    square = 1 + p.spread**2
    right = np.sqrt(noise(spectrum, p.d - 1, square)) / size
    missed = np.sqrt(spectrum[1] ** 2 + noise(spectrum[:1], p.d - 1, square + spectrum[1] ** 2)) / size
    pooled = np.sqrt(1 + noise([*spectrum, 1.0], p.d, p.spread**2)) / size
    return (
        _check(f"{words}one environment a step: relative error", found[0], right, Within(0.02, 0.1), missed),
        _check(f"{words}pooled: relative error", found[1], pooled, Within(0.05, 0.3), right),
    )


def _measure_signals(parameters: Signals, key: Key[Array, ""]) -> Measurement:
    p = parameters
    checks, medians, lost = [], [], 0
    numbers = 2 ** np.arange(1, p.numbers + 1)
    for index, kappa in enumerate(numbers):
        spectrum = [1.0, 1 / float(kappa)]
        steps = round(p.time * kappa / p.step_size)
        found, gone = _relative(p, spectrum, steps, jax.random.fold_in(key, index))
        checks += _compared(p, spectrum, found, f"κ = {kappa}, ")
        medians.append([float(np.median(x)) for x in found])
        lost += gone
    data = xarray.Dataset({"median": (("kappa", "kind"), medians)}, coords={"kappa": numbers})
    return Measurement(tuple(checks), data, p.seeds, lost)


def _measure_signed(parameters: Signed, key: Key[Array, ""]) -> Measurement:
    found, lost = _relative(parameters, [1.0, -1.0], parameters.steps, key)
    data = xarray.Dataset({"one": ("seed", found[0]), "pooled": ("pooled_seed", found[1])})
    return Measurement(_compared(parameters, [1.0, -1.0], found, ""), data, parameters.seeds, lost)


CLAIMS = (
    Claim(
        id="invariant-or-mean",
        paper="heterogeneity",
        place="Figure 5, Theorem 2 against Theorem 3",
        statement="One environment a step finds the invariant matrix; pooled batches of the same data find the "
        "invariant one plus the mean spurious one.",
        equation="UU' → A*  against  UU' → A* + E A(e)",
        alternative="How the batches are drawn does not matter: one environment a step and pooled batches find the "
        "same solution.",
        scales={"smoke": Both(32), "default": Both(100), "full": Both(1000)},
        measure=_measure_both,
        accelerated=True,
    ),
    Claim(
        id="pooled-near-neither",
        paper="heterogeneity",
        place="Figure 6",
        statement="With few measurements a step, pooled SGD ends near neither solution, the farther the larger the "
        "step: as far as Gaussian noise of the same covariance drives it.",
        equation="|UU' - A*| and |UU' - A* - E A(e)| at m = 80, d = 30",
        alternative="Pooled SGD ends at the mean solution whatever the step, as with many measurements.",
        scales={"smoke": Few(16), "default": Few(100), "full": Few(1000)},
        measure=_measure_few,
        accelerated=True,
    ),
    Claim(
        id="condition-number",
        paper="heterogeneity",
        place="Appendix D, Theorem 8",
        statement="An invariant matrix with the eigenvalues 1 and 1/κ is found as well, in κ times as many "
        "steps, up to the error that measurement noise leaves.",
        equation="A* = diag(1, 1/κ),  |UU' - A*|² = ∑_ij η (l_i + l_j) F (1 + δ_ij)/(2 m (2 - η (l_i + "
        "l_j))),  F = E s²",
        alternative="The smaller eigenvalue is not found: the error is that eigenvalue.",
        scales={"smoke": Signals(32, 2, d=20), "default": Signals(100, 3), "full": Signals(1000, 3)},
        measure=_measure_signals,
        accelerated=True,
    ),
    Claim(
        id="indefinite-signal",
        paper="heterogeneity",
        place="Section 3.1, in one line: UU' - VV'",
        statement="With UU' - VV' an invariant matrix with eigenvalues of both signs is found.",
        equation="A* = diag(1, -1)",
        alternative="The negative eigenvalue is not found, as with UU' alone.",
        scales={"smoke": Signed(32), "default": Signed(100), "full": Signed(1000)},
        measure=_measure_signed,
        accelerated=True,
    ),
)
