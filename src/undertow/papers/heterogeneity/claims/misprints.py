"""Misprints of the paper that a measurement decides."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.estimate import standard_error
from undertow.figures import style
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 30
"""Number of single measurements or batches in a figure."""


@dataclass(frozen=True)
class Batches:
    """Batches of explicit measurements of a fixed matrix."""

    draws: int
    """Number of batches."""
    m: int = 10
    """Measurements in a batch."""
    d: int = 4
    """Dimension of the matrices."""


@dataclass(frozen=True)
class Runs:
    """HeteroSGD on measurements that are drawn one by one, from U = alpha I."""

    seeds: int
    """Number of runs of each kind."""
    spread: float
    """Spread M of the spurious law 1 ± M; 0 for no spurious signal."""
    rank: int
    """Rank of A*."""
    d: int = 4
    """Dimension of the matrices."""
    m: int = 200
    """Measurements per step."""
    step_size: float = 0.05
    """Step size η of the paper."""
    steps: int = 200
    """Number of steps."""
    alpha: float = 1e-3
    """Scale α of the start."""
    fresh: int = 1000
    """Number of fresh measurements on which a fitted model is tested."""


def _rng(key: Key[Array, ""]) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _measure_symmetric(parameters: Batches, key: Key[Array, ""]) -> Measurement:
    p = parameters
    white = _rng(key).standard_normal((p.draws, p.m, p.d, p.d))
    target = np.zeros((p.d, p.d))
    target[0, 1] = target[1, 0] = np.sqrt(0.5)  # |M| = 1, off the diagonal
    mirrored = _mirrored(white)
    squares = statistics.mean((np.einsum("nmij,ij->nm", mirrored, target) ** 2).mean(1))

    def step(x: np.ndarray) -> np.ndarray:
        return np.einsum("nm,nmij->nij", np.einsum("nmij,ij->nm", x, target), x) / p.m

    full = step(white)
    goe = step((white + np.swapaxes(white, 2, 3)) / 2)
    halves = (full + np.swapaxes(full, 1, 2)) / 2  # full X, symmetrised in the step
    noise = {name: statistics.mean(g[:, 2, 3] ** 2) for name, g in (("full", full), ("goe", goe), ("half", halves))}
    skew = statistics.mean((full[:, 2, 3] - full[:, 3, 2]) ** 2)
    variance = 1 / (2 * p.m)  # the variance of an entry of G off the diagonal and off M, symmetric X
    checks = (
        Check(
            "symmetric X with N(0, 1) entries: E<X, M>²/|M|² for M off the diagonal", squares[0], 2.0, squares[1],
            Within(0.0, 0.2), printed=1.0, alternative=1.0,
        ),
        *(
            Check(f"{name}: variance of G_ij off the diagonal, in units of 1/(2m)", noise[which][0] / variance,
                  predicted, noise[which][1] / variance, Within(0.0, 0.3), alternative=3.0 - predicted)
            for name, which, predicted in (
                ("N(0, 1/2) off the diagonal", "goe", 1.0), ("full X, symmetrised in the step", "half", 1.0),
                ("full X, not symmetrised", "full", 2.0),
            )
        ),
        Check("full X, not symmetrised: variance of G_ij - G_ji, in units of 1/(2m)", skew[0] / variance, 4.0,
              skew[1] / variance, Within(0.0, 0.6), alternative=0.0),
    )  # fmt: skip
    shares = np.linspace(0, 1, 5)
    laws = {"printed": _isometry(mirrored, shares), "halved": _isometry(white, shares)}
    data = xarray.Dataset(
        {"ratio": ("check", [c.measured for c in checks])}
        | {name: (("kind", "share"), np.array(values).T) for name, values in laws.items()}
        | {name: (("batch", "entry"), g[:SHOWN, [2, 3], [3, 2]] / np.sqrt(variance))
           for name, g in (("full", full), ("goe", goe))},
        coords={"share": shares},
    )  # fmt: skip
    return Measurement(checks, data, p.draws)


def _isometry(x: np.ndarray, shares: np.ndarray) -> list[tuple[float, float]]:
    """Return E<X, M>^2/|M|^2 and its standard error for M with these shares of |M|^2 off the diagonal."""
    on, off = x[:, :, 0, 0], (x[:, :, 0, 1] + x[:, :, 1, 0]) * np.sqrt(0.5)
    return [statistics.mean(((np.sqrt(1 - s) * on + np.sqrt(s) * off) ** 2).mean(1)) for s in shares]


def _draw_symmetric(measurement: Measurement, parameters: Batches) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.2)
    data = measurement.data
    style.theory(left, [0, 1], [1, 2], "N(0, 1) entries, in print", "red")
    style.theory(left, [0, 1], [1, 1], "N(0, 1/2) off the diagonal", "blue")
    style.points(left, data.share, *data.printed.values, "N(0, 1) entries, drawn", "red", "s")
    style.points(left, data.share, *data.halved.values, "N(0, 1/2) off the diagonal, drawn", "blue")
    left.set(xlabel="share of |M|² off the diagonal", ylabel="E<X, M>²/|M|²", ylim=(0.8, 2.2))
    left.legend()
    angle = np.linspace(0, 2 * np.pi, 33)
    style.theory(right, 2**1.5 * np.cos(angle), 2**1.5 * np.sin(angle), "2 standard deviations, full X", "red")
    style.theory(right, [-3, 3], [-3, 3], "symmetric G", "blue")
    style.points(right, data.full[:, 0], data.full[:, 1], None, "steps, full X", "red", "s")
    style.points(right, data.goe[:, 0], data.goe[:, 1], None, "steps, symmetric X", "blue")
    right.set(xlabel="G_ij, in units of 1/√(2m)", ylabel="G_ji, in units of 1/√(2m)")
    right.set_aspect("equal", adjustable="datalim")
    right.legend()
    return figure


def _mirrored(white: np.ndarray) -> np.ndarray:
    """Return symmetric X with every entry N(0, 1), as printed."""
    return np.triu(white) + np.swapaxes(np.triu(white, 1), 2, 3)


def _symmetric(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return full N(0, 1) matrices, symmetrised: the measurements of the isometry (8)."""
    white = rng.standard_normal(shape)
    return (white + np.swapaxes(white, -1, -2)) / 2


def _model(x: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return <X, UU'> for each measurement of each run."""
    return np.einsum("smij,sij->sm", x, product)


def _environment(signal: np.ndarray, size: np.ndarray, spurious: np.ndarray) -> np.ndarray:
    """Return A(e) = A* + s vv', as printed in Section 5."""
    return signal[None] + size[:, None, None] * spurious[None]


def _signals(parameters: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return A* and vv', on coordinate axes."""
    axes = np.eye(parameters.d)
    return axes * (np.arange(parameters.d) < parameters.rank)[None], np.outer(axes[-1], axes[-1])


def _learnt(parameters: Runs, rng: np.random.Generator, printed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return U of every run after the steps U - eta G U on y = <X, A* + A(e)>, A(e) as printed or A(e) = s vv'.

    The second array is the learnt signal along u after each step.
    """
    p = parameters
    signal, spurious = _signals(p)
    u, path = np.broadcast_to(p.alpha * np.eye(p.d), (p.seeds, p.d, p.d)), []
    for _ in range(p.steps):
        size = 1 + p.spread * rng.choice([-1.0, 1.0], p.seeds) if p.spread else np.zeros(p.seeds)
        environment = _environment(signal, size, spurious) if printed else size[:, None, None] * spurious[None]
        x = _symmetric(rng, p.seeds, p.m, p.d, p.d)
        y = np.einsum("smij,sij->sm", x, signal[None] + environment)
        residual = _model(x, u @ np.swapaxes(u, 1, 2)) - y
        u = u - p.step_size * np.einsum("sm,smij->sij", residual, x) / p.m @ u
        path.append(np.sum(u[:, 0] ** 2, axis=1))
    return u, np.array(path)


def _measure_model(parameters: Runs, key: Key[Array, ""]) -> Measurement:
    p, rng = parameters, _rng(key)
    u, _ = _learnt(p, rng, printed=False)
    x = _symmetric(rng, p.seeds, p.fresh, p.d, p.d)
    y = np.einsum("smij,ij->sm", x, _signals(p)[0])
    fitted = _model(x, u @ np.swapaxes(u, 1, 2))
    missed = ((y - fitted) ** 2).mean(1)
    share = statistics.mean(1 - missed / y.var(1))
    # a model without X predicts the same number for every measurement, at best the mean of y
    what = "share of the variance of y on fresh measurements that the fitted model explains"
    check = Check(what, share[0], 1.0, share[1], Within(1e-3, 0.1), printed=0.0, alternative=0.0)
    columns = {"y": y[0, :SHOWN], "fitted": fitted[0, :SHOWN]}
    data = xarray.Dataset({"missed": ("seed", missed)} | {name: ("sample", v) for name, v in columns.items()})
    return Measurement((check,), data, p.seeds)


def _draw_model(measurement: Measurement, parameters: Runs) -> "Figure":
    figure, (axes,) = style.new_figure()
    y, fitted = measurement.data.y.values, measurement.data.fitted.values
    style.proportional(axes, y, "y = <X, UU'>")
    style.theory(axes, 1.05 * np.array([y.min(), y.max()]), [y.mean()] * 2, "y = <A, UU'>, in print: a constant", "red")
    style.points(axes, y, fitted, None, "fresh measurements of one run")
    axes.set(xlabel="y of a fresh measurement", ylabel="output of the fitted model")
    axes.legend()
    return figure


def _measure_doubled(parameters: Runs, key: Key[Array, ""]) -> Measurement:
    p, rng = parameters, _rng(key)
    paths = [_learnt(p, rng, printed)[1] for printed in (True, False)]
    (two, two_error), (one, one_error) = (statistics.mean(path[-1]) for path in paths)
    checks = (
        Check("A(e) = A* + s vv' in (1): learnt signal along u", two, 2.0, two_error, Within(0.03, 0.3), 1.0, 1.0),
        Check("A(e) = s vv' in (1): learnt signal along u", one, 1.0, one_error, Within(0.03, 0.2), alternative=2.0),
    )
    data = xarray.Dataset({"learnt": ("reading", [one, two]), "path": (("printed", "step", "seed"), np.array(paths))})
    return Measurement(checks, data, p.seeds)


def _draw_doubled(measurement: Measurement, parameters: Runs) -> "Figure":
    figure, (axes,) = style.new_figure()
    p, every = parameters, max(1, parameters.steps // 10)
    counts = np.arange(every, p.steps + 1, every)
    names = ("A(e) = A* + s vv', in print", "red", "s"), ("A(e) = s vv'", "blue", "o")
    for path, target, (name, colour, marker) in zip(measurement.data.path.values, (2, 1), names, strict=True):
        size, signal = p.alpha, [p.alpha**2]
        for _ in range(p.steps):  # the step on infinitely many measurements
            size *= 1 - p.step_size * (size**2 - target)
            signal.append(size**2)
        style.theory(axes, style.some(np.arange(p.steps + 1), 60), style.some(signal, 60), f"{name}, m → ∞", colour)
        some = path[every - 1 :: every]
        style.points(axes, counts, some.mean(axis=1), standard_error(some, axis=1), f"{name}, runs", colour, marker)
    axes.set(xlabel="steps", ylabel="learnt signal along u")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="symmetric-measurements",
        paper="heterogeneity",
        place="Section 5 against Eq. (1) and Definition 1",
        statement="Symmetric measurements with i.i.d. N(0, 1) entries, as printed, violate the isometry (8). Off the "
        "diagonal the variance must be 1/2, which is the law of full X symmetrised in the step. Full X that are not "
        "symmetrised double the noise off the diagonal and make G nonsymmetric.",
        equation="E<X, M>² = |M|² for symmetric M",
        alternative="Symmetric X with N(0, 1) entries are isotropic as printed, E<X, M>² = |M|², and full X add no "
        "more noise to the step than symmetric ones.",
        scales={"smoke": Batches(20_000), "default": Batches(100_000), "full": Batches(400_000)},
        measure=_measure_symmetric,
        draw=_draw_symmetric,
    ),
    Claim(
        id="fitted-model",
        paper="heterogeneity",
        place="Section 3.1, the parametrisation",
        statement="The fitted model is y = <X, UU'>, not y = <A, UU'> as printed. Trained by (3), the first explains "
        "fresh measurements; the second predicts the same number for all of them.",
        equation="y = <X, UU'>",
        alternative="The fitted model is y = <A, UU'> as printed. It does not depend on X and explains nothing of y.",
        scales={"smoke": Runs(16, 0.0, 2), "default": Runs(64, 0.0, 2), "full": Runs(500, 0.0, 2)},
        measure=_measure_model,
        draw=_draw_model,
    ),
    Claim(
        id="spurious-signal-alone",
        paper="heterogeneity",
        place="Section 5 and Appendix B.2 against Eq. (1)",
        statement="The environments are A(e) = s vv', not A(e) = A* + s vv' as printed: with Eq. (1), y = <X, A* + "
        "A(e)>, the printed form counts A* twice, and its signal is learnt with the size 2.",
        equation="y = <X, A* + s vv'>",
        alternative="A(e) = A* + s vv' does not count A* twice: with it, HeteroSGD on (1) learns the signal along u "
        "with the size 1.",
        scales={"smoke": Runs(16, 2.0, 1), "default": Runs(64, 2.0, 1), "full": Runs(500, 2.0, 1)},
        measure=_measure_doubled,
        draw=_draw_doubled,
    ),
)
