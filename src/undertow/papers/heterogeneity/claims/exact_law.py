"""The law of the draws of `MatrixSensing`, compared with explicit measurements for several ensembles."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow import _trees as trees
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.sensing.ensembles import AbstractEnsemble, Correlated, MatrixNormal
from undertow.sensing.laws import AbstractLaw, Table, Uniform
from undertow.sensing.loss import SensingLoss
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import AtLevel, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ensemble = Literal["goe", "full"] | AbstractEnsemble

ENSEMBLES: tuple[Ensemble, ...] = ("goe", "full")
BLOCK = 2000
"""Number of draws computed at once."""
LEVELS = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Levels of the quantiles of the length of a step, for the figure."""


@dataclass(frozen=True)
class ExactDraws:
    """Stochastic gradients at a fixed point, by the exact law and from explicit measurements."""

    draws: int
    """Number of draws of each kind, for each ensemble."""
    d: int = 6
    """Dimension of the matrices."""
    m: int = 12
    """Measurements in a batch."""


def _kinds(parameters: ExactDraws) -> dict[str, MatrixSensing]:
    table = Table([[-1.0, 0.5], [2.0, 1.0], [0.5, -2.0]], [0.2, 0.5, 0.3])
    density = Uniform([-1.0, 0.0], [2.0, 1.5])
    filled = Table(
        [[-1.0, 0.5, 0.7], [2.0, 1.0, -0.4], [0.5, -2.0, 0.2]], [0.2, 0.5, 0.3]
    )  # two directions and the entry between them
    d = parameters.d
    some, rows, columns = _factors(jax.random.key(3), d)
    laws: dict[str, AbstractLaw] = {"table": table, "density": density}
    settings = [(f"{name}, {which}", law, which) for name, law in laws.items() for which in ENSEMBLES]
    settings += [
        ("entries off the diagonal, any covariance", filled, Correlated(some)),
        ("entries off the diagonal, correlated rows and columns", filled, MatrixNormal(rows, columns)),
    ]
    return {
        f"{name}, {'pooled' if pooled else 'one environment'}": MatrixSensing(
            d, parameters.m, law, spurious_rank=2, pooled=pooled, ensemble=ensemble, key=jax.random.key(1),
            dtype=jnp.float32,
        )
        for name, law, ensemble in settings
        for pooled in (False, True)
    }  # fmt: skip


@partial(jax.jit, static_argnums=1)
def _factors(key: Key[Array, ""], d: int) -> tuple[Array, Array, Array]:
    """Return the factor of any covariance of the entries, and the factors of rows and of columns."""
    first, second = jax.random.split(key)
    rows, columns = jnp.eye(d)[None] + jax.random.normal(second, (2, d, d), jnp.float32) / d
    return jax.random.normal(first, (3 * d, d, d), jnp.float32) / d, rows, columns


def _exact(
    noise: MatrixSensing, point: Array, draws: int, key: Key[Array, ""]
) -> tuple[np.ndarray, float, np.ndarray | None]:
    """Return draws of the library in blocks as in a run, its prediction of E|G U|^2, and draws of the alternative.

    The alternative, for one environment per step, replaces the chi-square by its mean.
    """
    arrays, rest = eqx.partition(noise, eqx.is_array)

    def block(arrays: MatrixSensing, point: Array, drawn: PyTree) -> tuple[Array, Array]:
        noise = eqx.combine(arrays, rest)
        mean = noise.mean(point)
        predicted = noise.covariance(point).trace() + trees.dot(mean, mean)
        return jax.vmap(lambda one: noise.gradient(point, one))(drawn), predicted

    # each program runs briefly, so optimising it would take longer than running it; the randomness is drawn outside
    # of it, by operations that all kinds share
    compiled = jax.jit(block, compiler_options={"xla_backend_optimization_level": 0})
    keys = jax.random.split(key, -(-draws // BLOCK))
    drawn = [noise.randomness(k, BLOCK) for k in keys]
    exact = [compiled(arrays, point, block) for block in drawn]
    together = lambda parts: np.concatenate([np.asarray(g) for g, _ in parts])[:draws]
    if noise.pooled:
        return together(exact), float(exact[0][1]), None
    steady = [(white, sizes, np.full_like(square, noise.m)) for white, sizes, square in drawn]
    return together(exact), float(exact[0][1]), together([compiled(arrays, point, block) for block in steady])


def _explicit(noise: MatrixSensing, point: Array, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return draws from m explicit measurements each, in NumPy; only X = sqrt_mv(normals) comes from the ensemble."""
    d, m, k = noise.truth.shape[0], noise.m, noise.law.size
    each = m if noise.pooled else 1
    u, parts, signal = (np.asarray(x, np.float64) for x in (point, _parts(noise.problem), noise.problem.signal))
    products = []
    for _ in range(-(-draws // BLOCK)):
        normals = rng.standard_normal((BLOCK * m, *noise.ensemble.normal_structure(d)))
        x = np.asarray(_sqrt_mv(noise.ensemble, jax.device_put(normals), d)).reshape(BLOCK, m, d * d)
        sizes = _environments(noise.law, BLOCK * each, rng).reshape(BLOCK, each, k)
        target = (u @ u.T - signal).ravel() - sizes @ parts.reshape(k, d * d)
        weights = (x * target).sum(2)
        products.append(np.einsum("nm,nmk->nk", weights, x).reshape(BLOCK, d, d) @ u / m)
    return np.concatenate(products)[:draws]


@eqx.filter_jit
def _parts(problem: SensingLoss) -> Array:
    """Return the spurious signal of each number of an environment."""
    return jax.vmap(problem.spurious)(jnp.eye(problem.law.size))


@eqx.filter_jit
def _sqrt_mv(ensemble: AbstractEnsemble, normals: Array, d: int) -> Array:
    return jax.vmap(lambda one: ensemble.sqrt_mv(one, d))(normals)


def _environments(law: AbstractLaw, count: int, rng: np.random.Generator) -> np.ndarray:
    if isinstance(law, Table):
        return np.asarray(law.values)[rng.choice(len(law.probabilities), count, p=np.asarray(law.probabilities))]
    assert isinstance(law, Uniform)
    return rng.uniform(law.low, law.high, (count, law.size))


def _statistics(draws: np.ndarray) -> np.ndarray:
    """Return test statistics: entries, norms, and inner products with fixed matrices."""
    fixed = np.random.default_rng(2).normal(size=(4, *draws.shape[1:]))
    along = np.einsum("nij,kij->nk", draws, fixed)
    length = np.linalg.norm(draws, axis=(1, 2))
    second = np.linalg.norm(draws[:, :, 0], axis=1)
    return np.concatenate([along, along[:, :2] ** 2, length[:, None], second[:, None], draws[:, 0, :2]], axis=1)


def _p_value(one: np.ndarray, two: np.ndarray) -> float:
    """Return the p-value of the hypothesis that two sets of draws have the same law, corrected over all statistics."""
    from scipy.stats import ks_2samp

    least = min(ks_2samp(a, b).pvalue for a, b in zip(one.T, two.T, strict=True))
    return float(min(least * one.shape[1], 1))


def _measure(parameters: ExactDraws, key: Key[Array, ""]) -> Measurement:
    point = jax.random.normal(jax.random.fold_in(key, 1), (parameters.d, parameters.d), jnp.float32) / 2
    checks, values, lengths = [], [], {"explicit": [], "exact": [], "steady": []}
    kinds = _kinds(parameters)
    level = AtLevel(1e-3 / len(kinds), "Kolmogorov-Smirnov, all statistics")
    for index, (name, noise) in enumerate(kinds.items()):
        own = jax.random.fold_in(key, index + 2)
        exact, predicted, steady = _exact(noise, point, parameters.draws, own)
        plain = _explicit(noise, point, parameters.draws, np.random.default_rng(np.asarray(jax.random.key_data(own))))
        reference = _statistics(plain)
        p = _p_value(_statistics(exact), reference)
        other = None if steady is None else _p_value(_statistics(steady), reference)
        checks.append(
            Check(f"KS p-value of exact against explicit draws: {name}", p, 1.0, 0.0, level, alternative=other)
        )
        squares = np.sum(exact.astype(np.float64) ** 2, axis=(1, 2))
        error = float(standard_error(squares, ddof=0)) / predicted
        checks.append(Check(f"E|G U|² / prediction: {name}", squares.mean() / predicted, 1.0, error, Within(1e-4, 0.2)))
        values.append(p)
        for which, draws in (("explicit", plain), ("exact", exact), ("steady", exact if steady is None else steady)):
            norms = np.linalg.norm(draws, axis=(1, 2)) / np.sqrt(predicted)
            lengths[which].append(np.quantile(norms, LEVELS))
    columns = {name: (("kind", "level"), np.array(rows)) for name, rows in lengths.items()}
    data = xarray.Dataset({"p": ("kind", values)} | columns, coords={"level": list(LEVELS)})
    return Measurement(tuple(checks), data, parameters.draws)


def _draw(measurement: Measurement, parameters: ExactDraws) -> "Figure":
    """Draw quantiles of the length of a step for all kinds, which alternate between one environment and pooled."""
    figure, panels = style.new_figure(2, width=4.0)
    data = measurement.data
    for index, (axes, title) in enumerate(zip(panels, ("one environment per step", "pooled"), strict=True)):
        explicit, exact, steady = (data[name].values[index::2].ravel() for name in ("explicit", "exact", "steady"))
        style.proportional(axes, explicit)
        if index == 0:
            style.points(axes, explicit, steady, None, "quantiles with c = m", "red", "x")
        style.points(axes, explicit, exact, None, "quantiles, exact law")
        axes.set(xlabel="explicit measurements: |G U|/√E|G U|²", ylabel="one draw: |G U|/√E|G U|²", title=title)
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="exact-law",
        paper="heterogeneity",
        place="Algorithms 1 and 2, the law of a step",
        statement="A step on fresh Gaussian measurements has the law of one Gaussian matrix and a chi-square, with "
        "one environment per step and pooled, for symmetric, full and all other Gaussian measurements. No "
        "measurements need to be drawn.",
        equation="G = (c/m) CM + (√c/m) (s Z - <Z, M> CM/s),  s² = <M, CM>,  c ~ χ²_m",
        alternative="The length of a step does not fluctuate with the batch, c = m: the Gaussian limit of large "
        "batches.",
        rests_on=("symmetric-measurements",),
        controls=True,
        scales={"smoke": ExactDraws(2_000), "default": ExactDraws(50_000), "full": ExactDraws(200_000)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
        long=True,
    ),
)
