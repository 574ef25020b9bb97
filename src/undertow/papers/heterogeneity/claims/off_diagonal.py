"""A spurious signal whose eigenvectors vary between environments: the effect of off-diagonal entries."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key
from scipy import special

from undertow.figures import style
from undertow.papers.heterogeneity import _runs as sensing_runs
from undertow.sensing.laws import Gaussian
from undertow.sensing.matrix_sensing import MatrixSensing
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS = (2, 3, 4, 6)
"""Ranks of the spurious signal for the products of steps; HeteroSGD runs at the last one."""

LEARNT = 0.05
"""A spurious signal above this share of its mean is learnt."""


@dataclass(frozen=True)
class Turning:
    """A Gaussian spurious signal with standard deviation √2 τ on the diagonal, and τ or 0 off it."""

    seeds: int
    """Number of runs of HeteroSGD of each kind."""
    products: int
    """Number of products of random steps at each rank."""
    length: int = 50
    """Number of steps of each product."""
    d: int = 8
    """Dimension of the matrices."""
    m: int = 1_000_000
    """Measurements per step."""
    mean: float = 0.25
    """Mean of the spurious signal."""
    deviation: float = 5.0
    """Standard deviation τ of an off-diagonal entry."""
    step_size: float = 0.02
    """Step size η of the paper."""
    alpha: float = 1e-4
    """Scale α of the start U = α I."""
    steps: int = 750
    """Number of steps of each run."""


def _law(parameters: Turning, rank: int, turning: bool) -> Gaussian:
    p, above = parameters, rank * (rank - 1) // 2
    mean = np.concatenate([np.full(rank, p.mean), np.zeros(above)])
    spread = np.concatenate([np.full(rank, np.sqrt(2) * p.deviation), np.full(above, p.deviation * turning)])
    return Gaussian(mean, spread)


def _growth(parameters: Turning, rank: int, turning: bool) -> float:
    """Return E log |(I + eta S) e_1|, by quadrature over s_11 and the chi-square of the other entries.

    The law is invariant under rotations, so the typical growth per step is the same for every direction.
    """
    p = parameters
    points, weights = np.polynomial.hermite_e.hermegauss(200)
    first = (1 + p.step_size * (p.mean + np.sqrt(2) * p.deviation * points)) ** 2
    if not turning or rank == 1:
        return float(weights @ np.log(first) / weights.sum() / 2)
    share = (np.arange(2000) + 0.5) / 2000
    others = (p.step_size * p.deviation) ** 2 * special.chdtri(rank - 1, 1 - share)
    return float(weights @ np.log(first[:, None] + others[None]).mean(axis=1) / weights.sum() / 2)


def _product(parameters: Turning, rank: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the growth per step of a vector under q <- (I + eta S) q: Eq. (23) for small q, without errors."""
    p = parameters
    q = np.zeros((p.products, rank))
    q[:, 0] = 1
    for _ in range(p.length):
        white = p.deviation * rng.standard_normal((p.products, rank, rank))
        turned = np.einsum("nij,nj->ni", white, q) + np.einsum("nji,nj->ni", white, q)
        q = q + p.step_size * (p.mean * q + turned / np.sqrt(2))
    return statistics.mean(np.log(np.linalg.norm(q, axis=1)) / p.length)


def _measure(parameters: Turning, key: Key[Array, ""]) -> Measurement:
    p = parameters
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    grown = [_product(p, rank, rng) for rank in RANKS]
    predicted = [_growth(p, rank, True) for rank in RANKS]
    ends, diverged = [], 0
    for turning in (False, True):
        sensing = MatrixSensing(p.d, p.m, _law(p, RANKS[-1], turning), spurious_rank=RANKS[-1], dtype=jnp.float32)
        measures, failed = sensing_runs.ends(
            sensing, p.step_size, p.steps, p.seeds, jax.random.fold_in(key, turning), alpha=p.alpha
        )
        ends.append(measures)
        diverged += failed
    diagonal, turned = (statistics.share(measures["spurious"] > LEARNT * p.mean) for measures in ends)
    true = statistics.median(ends[1]["true"])
    checks = (
        *(
            Check(f"rank {rank}: typical growth per step", value, growth, error, Within(1e-4, 2e-3),
                  alternative=_growth(p, rank, False), samples=p.products)
            for rank, (value, error), growth in zip(RANKS, grown, predicted, strict=True)
        ),
        Check("HeteroSGD, diagonal signal: share of runs that learn the spurious signal", *_bounded(diagonal),
              Below(0.3), alternative=1.0, samples=math.inf),
        Check("HeteroSGD, rotating signal: share of runs that learn the spurious signal", *_bounded(turned),
              Above(0.5), alternative=0.0, samples=math.inf),
        Check("HeteroSGD, rotating signal: median true signal", *_bounded(true), Above(0.9), alternative=0.0),
    )  # fmt: skip
    data = xarray.Dataset(
        {"grown": ("rank", [m for m, _ in grown]), "error": ("rank", [e for _, e in grown])},
        coords={"rank": list(RANKS)},
    )
    return Measurement(checks, data, p.seeds, diverged)


def _bounded(measured: tuple[float, float]) -> tuple[float, float, float]:
    """Return (measured, predicted, uncertainty) of a number for which only a bound is predicted."""
    return measured[0], measured[0], measured[1]


def _draw(measurement: Measurement, parameters: Turning) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    ranks = np.arange(1, max(RANKS) + 1)
    for turning, words, colour in ((False, "diagonal signal", "blue"), (True, "rotating signal", "red")):
        predicted = [_growth(parameters, int(rank), turning) for rank in ranks]
        style.theory(axes, ranks, predicted, f"{words}: E log |(I + ηS)e|", colour)
    style.points(axes, data["rank"], data.grown, data.error, "rotating signal, products of steps", "red")
    axes.axhline(0.0, color=style.COLOURS["grey"], lw=1, ls="--")
    axes.set(xlabel="rank of the spurious signal", ylabel="typical growth per step")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="off-diagonal-signal",
        paper="heterogeneity",
        place="Assumption 2, Eq. (7)",
        statement="Off-diagonal entries of the spurious signal that are as large as the diagonal ones undo the "
        "filtering, more so at larger rank: per step they add η² τ² (r2 - 3)/2 to the typical growth, where a "
        "diagonal signal adds -η² τ². At rank 2 half of the filtering remains; from rank 4 on the variation makes the "
        "signal grow.",
        equation="E log |(I + η S) e| = η E s + η² τ² (r2 - 3)/2 + ...,  Var S_ii = 2 Var S_ij = 2τ²",
        alternative="Off-diagonal entries do not matter: the signal is filtered out like a diagonal one.",
        scales={"smoke": Turning(64, 8_000), "default": Turning(128, 100_000), "full": Turning(1024, 1_000_000)},
        measure=_measure,
        draw=_draw,
        long=True,
    ),
)
