"""The two phases of HeteroSGD, the distance of pooled SGD to the invariant matrix, and the error over d and m."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.papers.heterogeneity._runs import ends
from undertow.sensing.decomposition import auxiliary
from undertow.sensing.laws import two_point
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0.5, 0.95, 0.99)
"""Levels of the true signal whose passage times are compared."""


@dataclass(frozen=True)
class Path:
    """Runs recorded at every step, with three true and two spurious directions."""

    seeds: int
    """Number of runs."""
    spread: float
    """M of the spurious law 1 ± M."""
    steps: int
    """Number of steps."""
    d: int = 20
    """Dimension of the matrices."""
    m: int = 100_000
    """Measurements per step."""
    step_size: float = 0.05
    """Step size η of the paper."""
    alpha: float = 1e-3
    """Scale α of the start U = α I."""


@dataclass(frozen=True)
class Rates:
    """HeteroSGD with one true and one spurious direction, at several m and d."""

    seeds: int
    """Number of runs at each pair of m and d."""
    values: int
    """Number of values of m, each five times the one before, and of d, each twice the one before."""
    d: int = 20
    """Dimension at which m varies, and the smallest of the dimensions that vary."""
    m: int = 8000
    """Second value of m, and the one at which d varies."""
    spread: float = 8.0
    """M of the spurious law 1 ± M."""
    step_size: float = 0.05
    """Step size η of the paper."""
    steps: int = 200
    """Number of steps of each run."""


def _path(parameters: Path, key: Key[Array, ""], pooled: bool) -> tuple[dict[str, np.ndarray], int]:
    """Return the measures of the runs that stayed finite (seeds, steps + 1, ...), and the number of diverged runs."""
    p = parameters
    law = two_point(1.0, p.spread, 2)
    sensing = MatrixSensing(p.d, p.m, law, rank=3, pooled=pooled, dtype=jnp.float32)
    inside = lambda u: sensing.truth.T @ u @ u.T @ sensing.truth
    run = descend(
        sensing, sensing.start(p.alpha), step_size=p.step_size, steps=p.steps, key=key, seeds=p.seeds, every=1,
        observe={"inside": inside, "seen": sensing.measure}, progress=False,
    )  # fmt: skip
    finite = ~run.diverged
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(run.observed["inside"]), 0))
    measures = {"singular": singular, **run.observed["seen"]}
    return {name: values[finite] for name, values in measures.items()}, int((~finite).sum())


@dataclass(frozen=True)
class _Phases:
    """Singular values of the invariant part and the recursions that predict them, up to the end of phase 1."""

    eta: float
    alpha: float
    values: np.ndarray
    """Singular values (seeds, steps + 1, rank) in the whole run."""
    path: np.ndarray
    """Recursion (25) in the whole run."""
    upper: np.ndarray
    """Upper recursion of (31) in phase 1."""
    lower: np.ndarray
    """Lower recursion of (31) in phase 1."""
    double: np.ndarray
    """Recursion (25) at twice the step size: the step of the loss (2) with this eta."""

    @property
    def end(self) -> int:
        """The step T1 of Theorem 4."""
        return len(self.upper) - 1


def _recursion_checks(phases: _Phases) -> list[Check]:
    """Check phase 1 against the recursions (25) and (31)."""
    eta, end, path, upper, lower = phases.eta, phases.end, phases.path, phases.upper, phases.lower
    first = phases.values[:, : end + 1]
    growth = (first[:, 1:] / first[:, :-1]).min((1, 2))
    column = lambda x: x[None, :, None]
    slowest = statistics.median((growth - 1) / eta)
    away = statistics.median(np.abs(first / path[None, : end + 1, None] - 1).max((1, 2)))
    above = statistics.median((first[:, 1:] / column(upper[1:])).max((1, 2)) - 1)
    below = statistics.median(1 - (first[:, 1:] / column(lower[1:])).min((1, 2)))
    late = statistics.median((first[:, 1:] / column(upper[:-1])).max((1, 2)) - 1)
    slow = statistics.median(growth)
    lag, freely = float((path[1 : end + 1] / upper[:-1]).max() - 1), 1 + eta - eta * path[end - 1] ** 2
    highest, lowest = float((upper / path[: end + 1]).max()), float((lower / path[: end + 1]).min())
    unlogged = highest ** np.log(1 / phases.alpha)  # with eta/32, without the logarithm
    return [
        Check("phase 1: least growth rate of a singular value per step / η", slowest[0], 1.0, slowest[1], Above(1 / 3)),
        Check("phase 1: largest relative deviation from the recursion (25)", away[0], 0.0, away[1], Below(1 / 6),
              alternative=float(np.abs(phases.double / path - 1)[: end + 1].max())),
        Check("phase 1: largest ratio of the upper recursion of (31) to (25)", highest, 1.0, 0.0, Below(7 / 6),
              alternative=unlogged),
        Check("phase 1: least ratio of the lower recursion of (31) to (25)", lowest, 1.0, 0.0, Above(5 / 6)),
        Check("phase 1: largest excess of σ_j over the upper recursion of (31), relative", above[0], 0.0, above[1],
              Below(0.0), alternative=lag),
        Check("phase 1: largest deficit of σ_j below the lower recursion of (31), relative", below[0], 0.0, below[1],
              Below(0.0)),
        Check("(86) as printed: largest excess of σ_j at t + 1 over the upper recursion at t", late[0], lag,
              late[1], Within(0.002, 0.01), printed=0.0, alternative=0.0),
        Check("phase 1: least growth factor of a singular value per step", slow[0], freely, slow[1],
              Within(0.005, 0.02), printed=1 + 3 / eta, alternative=2 * freely - 1),
    ]  # fmt: skip


def _level_checks(phases: _Phases, measures: dict[str, np.ndarray]) -> list[Check]:
    """Check the sizes at the ends of both phases, and the steps at which the true signal passes `LEVELS`."""
    values, end, path = phases.values, phases.end, phases.path
    low, high = statistics.median(values[:, end].min(1)), statistics.median(values[:, end].max(1))
    last = statistics.median(np.abs(values[:, -1] - 1).max(1))
    spurious = statistics.median(measures["spurious"].max(1))
    passes = lambda path, level: float((path**2 > level).argmax())
    times = [(statistics.median((measures["true"] > level).argmax(1)), level) for level in LEVELS]
    return [
        Check("end of phase 1: smallest singular value", low[0], path[end], low[1], Above(1 / 4)),
        Check("end of phase 1: largest singular value", high[0], path[end], high[1], Below(7 / 18)),
        Check("end of phase 2: largest distance of a singular value to 1", last[0], 0.0, last[1], Below(0.05)),
        Check("largest spurious signal along the run", spurious[0], 0.0, spurious[1], Below(0.05)),
        *(
            Check(f"step at which the true signal passes {level:g}", time[0], passes(path, level), time[1],
                  Within(3.0, 10.0), alternative=passes(phases.double, level))
            for time, level in times
        ),
    ]  # fmt: skip


def _measure_phases(parameters: Path, key: Key[Array, ""]) -> Measurement:
    p = parameters
    eta = p.step_size
    measures, diverged = _path(p, key, pooled=False)
    recursions = auxiliary(eta, steps=p.steps, alpha=p.alpha)
    path, values = recursions.growth, measures["singular"]
    end = int(np.argmax(path > 1 / 3 - eta))  # T1 of Theorem 4
    double = auxiliary(2 * eta, steps=p.steps, alpha=p.alpha).growth
    phases = _Phases(eta, p.alpha, values, path, recursions.upper[: end + 1], recursions.lower[: end + 1], double)
    checks = (*_recursion_checks(phases), *_level_checks(phases, measures))
    data = xarray.Dataset(
        {
            "low": ("step", np.median(values.min(2), axis=0)),
            "high": ("step", np.median(values.max(2), axis=0)),
            "spurious": ("step", np.sqrt(np.median(measures["spurious"], axis=0))),
            "recursion": ("step", path),
        },
        attrs={"end": end},
    )
    return Measurement(checks, data, p.seeds, diverged)


def _draw_phases(measurement: Measurement, parameters: Path) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    step = np.arange(len(data.recursion))
    style.theory(axes, step, data.recursion, "recursion (25)")
    shown = slice(None, None, 10)
    for name, label, colour in (("low", "smallest", "blue"), ("high", "largest", "green")):
        style.points(axes, step[shown], data[name][shown], None, f"{label} singular value, median", colour)
    style.points(axes, step[shown], data.spurious[shown], None, "spurious part, median", "red")
    axes.axvline(data.attrs["end"], color=style.COLOURS["grey"], ls="--", lw=1, label="end of phase 1")
    axes.set(xlabel="step", ylabel="size of a part of U", yscale="log", ylim=(1e-6, 2))
    axes.legend(loc="lower right")
    return figure


def _without_noise(parameters: Path, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """Return |UU' - A*| and |UU' - A* - mean A(e)| of noiseless pooled SGD at every step, for this spurious mean."""
    x = auxiliary(parameters.step_size, steps=parameters.steps, alpha=parameters.alpha).growth ** 2
    y = np.empty_like(x)
    size = parameters.alpha
    for step in range(len(y)):
        y[step] = size**2
        size *= 1 + parameters.step_size * (mean - size**2)
    return np.sqrt(3 * (1 - x) ** 2 + 2 * y**2), np.sqrt(3 * (1 - x) ** 2 + 2 * (mean - y) ** 2)


def _measure_away(parameters: Path, key: Key[Array, ""]) -> Measurement:
    """Compare with R^2 = x in all five directions: |UU' - A*|^2 = 3 (1 - x)^2 + 2 x^2, at least 6/5."""
    measures, diverged = _path(parameters, key, pooled=True)
    nearest = statistics.median(measures["to_invariant"].min(1))
    slow, behind = _without_noise(parameters, 0.5)
    last, mean = statistics.median(measures["to_invariant"][:, -1]), statistics.median(measures["to_mean"][:, -1])
    checks = (
        Check("pooled: median of the least |UU' - A*| along the run", nearest[0], np.sqrt(6 / 5), nearest[1],
              Within(0.02, 0.1), alternative=float(slow.min())),
        Check("pooled: median |UU' - A*| at the end", last[0], np.sqrt(2), last[1], Within(0.05, 0.2),
              alternative=float(slow[-1])),
        Check("pooled: median |UU' - A* - mean A(e)| at the end", mean[0], 0.0, mean[1], Below(0.1),
              alternative=float(behind[-1])),
    )  # fmt: skip
    part = lambda name: ("step", np.median(measures[name], axis=0))
    data = xarray.Dataset({name: part(name) for name in ("to_invariant", "to_mean")})
    return Measurement(checks, data, parameters.seeds, diverged)


def _draw_away(measurement: Measurement, parameters: Path) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    step = np.arange(len(data.to_mean))
    x = auxiliary(parameters.step_size, steps=parameters.steps, alpha=parameters.alpha).growth ** 2
    style.theory(axes, step, np.sqrt(3 * (1 - x) ** 2 + 2 * x**2), "to A*, by the recursion (25)")
    style.theory(axes, step, np.sqrt(5) * (1 - x), "to A* + mean A(e)", "red")
    shown = slice(None, None, 10)
    style.points(axes, step[shown], data.to_invariant[shown], None, "pooled SGD, to A*")
    style.points(axes, step[shown], data.to_mean[shown], None, "pooled SGD, to A* + mean A(e)", "red")
    axes.set(xlabel="step", ylabel="distance of UU', median")
    axes.legend()
    return figure


def _slope(x: np.ndarray, values: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of log y against log x by least squares, with its standard error."""
    logs = np.log(x) - np.log(x).mean()
    y, errors = np.log([m for m, _ in values]), np.array([e / m for m, e in values])
    weights = logs / (logs**2).sum()
    return float(weights @ y), float(np.sqrt(weights**2 @ errors**2))


def _measure_rates(parameters: Rates, key: Key[Array, ""]) -> Measurement:
    p = parameters
    ms = p.m // 5 * 5 ** np.arange(p.values)
    ds = p.d * 2 ** np.arange(p.values)
    pairs = [(p.d, int(m)) for m in ms] + [(int(d), p.m) for d in ds[1:]]
    errors, rests, diverged = {}, {}, 0
    for index, (d, m) in enumerate(pairs):
        sensing = MatrixSensing(d, m, two_point(1.0, p.spread), dtype=jnp.float32)
        measures, failed = ends(sensing, p.step_size, p.steps, p.seeds, jax.random.fold_in(key, index))
        errors[d, m], diverged = statistics.median(measures["to_invariant"]), diverged + failed
        predicted = np.sqrt((d - 2) * p.step_size * (1 + p.spread**2) / (2 * m * (2 - p.step_size)))
        middle = statistics.mean(measures["rest"] ** 2)
        rests[d, m] = (middle[0] / predicted**2, middle[1] / predicted**2)
    by_m, by_d = [errors[p.d, int(m)] for m in ms], [errors[int(d), p.m] for d in ds]
    over_m, over_d = _slope(ms, by_m), _slope(ds, by_d)
    checks = (
        Check("exponent a of |UU' - A*|, which is proportional to m^a", over_m[0], -0.5, over_m[1], Within(0.05, 0.3),
              alternative=-1.0),
        Check("exponent b of |UU' - A*|, which is proportional to d^b", over_d[0], 0.5, over_d[1], Within(0.1, 0.4),
              alternative=1.0),
        Check(
            f"mean |E|² / predicted stationary value, d = {p.d}", *(rests[p.d, p.m][0], 1.0, rests[p.d, p.m][1]),
            Within(0.15, 0.4), alternative=2.0,
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {
            "by_m": (("m", "part"), by_m), "by_d": (("d", "part"), by_d),
        },
        coords={"m": ms, "d": ds, "part": ["median", "error"]},
    )  # fmt: skip
    return Measurement(checks, data, p.seeds, diverged)


def _draw_rates(measurement: Measurement, parameters: Rates) -> "Figure":
    figure, panels = style.new_figure(2, width=4.2)
    for axes, name, power in zip(panels, ("m", "d"), (-0.5, 0.5), strict=True):
        x = measurement.data[name].values.astype(float)
        y, error = measurement.data[f"by_{name}"].values.T
        style.points(axes, x, y, error, "HeteroSGD, median")
        style.theory(axes, x, y[0] * (x / x[0]) ** power, f"{name}^{power:g}")
        words = {"m": "measurements per step m", "d": "dimension d"}[name]
        axes.set(xlabel=words, ylabel="median |UU' − A*|", xscale="log", yscale="log")
        axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="invariant-grows-first",
        paper="heterogeneity",
        place="Theorems 4 and 5, Eq. (25) and (31), Lemmas 5 and 14",
        statement="All singular values of the invariant part grow together along the recursion (25), by a factor above "
        "1 + η/3 per step (after (83) the paper prints 1 + 3/η), until they pass 1/4 to 7/18, and then approach 1. The "
        "spurious part stays small throughout. With a billion measurements per step the singular values stay between "
        "the recursions (31), which stay within a sixth of (25); they do not lag by one step, as printed in (86).",
        equation="R+ = (1 + η - η R²) R,  R_0 = α",
        alternative="The step is the gradient of the loss (2), 2 G U, and the growth is twice as fast; the line after "
        "(83) and Eq. (86) are right as printed.",
        rests_on=("exact-law",),
        controls=True,
        scales={
            "smoke": Path(64, 8.0, 250, m=10**9),
            "default": Path(128, 8.0, 250, m=10**9),
            "full": Path(500, 8.0, 250, m=10**9),
        },
        measure=_measure_phases,
        draw=_draw_phases,
    ),
    Claim(
        id="pooled-stays-away",
        paper="heterogeneity",
        place="Theorem 3, Eq. (12) and (13)",
        statement="Pooled SGD ends at the sum of the invariant and the mean spurious matrix and is not near the "
        "invariant one at any step, so that early stopping does not help. Its least distance to the invariant matrix "
        "has a closed form.",
        equation="min_t |UU' - A*| = √(r1 r2/(r1 + r2)) for E S = I",
        alternative="The spurious directions grow at half the rate of the true ones, so that early stopping finds the "
        "invariant matrix.",
        rests_on=("exact-law",),
        scales={"smoke": Path(16, 4.0, 250), "default": Path(64, 4.0, 250), "full": Path(500, 4.0, 250)},
        measure=_measure_away,
        draw=_draw_away,
    ),
    Claim(
        id="recovery-rate",
        paper="heterogeneity",
        place="Theorem 2, Eq. (10)",
        statement="The error of HeteroSGD falls like √(d/m). The part E outside both subspaces is stationary noise, "
        "whose mean square has a closed form that the paper's bound does not give.",
        equation="|UU' - A*| ~ √(d/m),  E|E|² = (d - 2) η E s²/(2 m (2 - η))",
        alternative="The error falls like d/m, and the part outside has the noise of full measurements, E s²/m in "
        "every entry instead of E s²/(2m).",
        rests_on=("exact-law",),
        scales={"smoke": Rates(128, 2), "default": Rates(128, 3), "full": Rates(1000, 3)},
        measure=_measure_rates,
        draw=_draw_rates,
        accelerated=True,
    ),
)
