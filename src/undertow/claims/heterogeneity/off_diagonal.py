"""A spurious signal that turns between environments: entries off the diagonal against those on it."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.claims import statistics
from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Above, Below, Check, Within
from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.noise.laws import Gaussian
from undertow.noise.sensing import MatrixSensing

RANKS = (2, 6)
"""Of the spurious signal."""


@dataclass(frozen=True)
class Turning:
    """HeteroSGD with a Gaussian spurious signal: mean I, deviation sqrt(2) tau on the diagonal, tau or 0 off it."""

    seeds: int
    """Runs of each kind."""
    d: int = 8
    """Dimension of the matrices."""
    m: int = 1_000_000
    """Measurements a step."""
    mean: float = 0.25
    """Mean of the spurious signal."""
    deviation: float = 5.0
    """tau."""
    step_size: float = 0.02
    """The paper's eta."""
    alpha: float = 1e-4
    """The start is alpha times the identity."""
    early: int = 150
    """When the growth is read off, long before anything saturates."""
    steps: int = 750
    """When the runs are looked at."""


def _law(parameters: Turning, rank: int, turning: bool) -> Gaussian:
    p, above = parameters, rank * (rank - 1) // 2
    mean = np.concatenate([np.full(rank, p.mean), np.zeros(above)])
    spread = np.concatenate([np.full(rank, np.sqrt(2) * p.deviation), np.full(above, p.deviation * turning)])
    return Gaussian(mean, spread)


def _growth(parameters: Turning, rank: int, turning: bool) -> float:
    """E log |(I + eta S) e_1|, by quadrature over s_11 and the chi-square of the other entries.

    A law that no rotation changes meets every direction alike, so that one step tells the typical growth.
    """
    p = parameters
    points, weights = np.polynomial.hermite_e.hermegauss(200)
    first = (1 + p.step_size * (p.mean + np.sqrt(2) * p.deviation * points)) ** 2
    if not turning or rank == 1:
        return float(weights @ np.log(first) / weights.sum() / 2)
    from scipy.stats import chi2

    share = (np.arange(2000) + 0.5) / 2000
    others = (p.step_size * p.deviation) ** 2 * chi2.ppf(share, rank - 1)
    return float(weights @ np.log(first[:, None] + others[None]).mean(axis=1) / weights.sum() / 2)


def _measure(parameters: Turning, key: Key[Array, ""]) -> Measurement:
    p = parameters
    grown, learnt, told, lost = {}, {}, {}, 0
    for rank in RANKS:
        for turning in (False, True):
            sensing = MatrixSensing(p.d, p.m, _law(p, rank, turning), spurious_rank=rank, dtype=jnp.float32)
            rows = lambda u, v=sensing.problem.directions: jnp.linalg.norm(v.T @ u, axis=1)
            run = descend(
                sensing, sensing.start(p.alpha), step_size=p.step_size, steps=p.steps, every=p.early,
                key=jax.random.fold_in(key, 2 * rank + turning), observe={"rows": rows, "seen": sensing.measure},
                seeds=p.seeds, lane_width=p.seeds, progress=False,
            )  # fmt: skip
            lived = ~run.diverged
            lost += int((~lived).sum())
            # the rows of one run share their environments
            each = np.log(run.observed["rows"][lived, 1] / p.alpha).mean(axis=1) / p.early
            grown[rank, turning] = statistics.mean(each)
            learnt[rank, turning] = statistics.median(run.observed["seen"]["spurious"][lived, -1])
            told[rank, turning] = _growth(p, rank, turning)
    name = {False: "diagonal", True: "turning"}
    low, high = RANKS
    checks = (
        *(
            Check(f"rank {rank}, {name[turning]}: typical growth a step", value, told[rank, turning], error,
                  Within(5e-4, 4e-3))
            for (rank, turning), (value, error) in grown.items()
        ),
        Check(f"rank {high}, diagonal: median spurious signal at the end", *_pair(learnt[high, False]), Below(1e-3)),
        Check(f"rank {high}, turning: median spurious signal at the end", *_pair(learnt[high, True]), Above(0.5)),
        Check(f"rank {low}, turning: median spurious signal at the end", *_pair(learnt[low, True]), Below(1e-3)),
    )  # fmt: skip
    table = lambda values: (("rank", "turning", "part"), np.array(list(values)).reshape(len(RANKS), 2, -1))
    data = xarray.Dataset(
        {"grown": table(grown.values()), "learnt": table(learnt.values())}, coords={"rank": list(RANKS)}
    )
    return Measurement(checks, data, p.seeds, lost)


def _pair(found: tuple[float, float]) -> tuple[float, float, float]:
    """(measured, predicted, uncertainty) where the prediction is the bound itself."""
    return found[0], found[0], found[1]


def _draw(measurement: Measurement, parameters: Turning) -> Any:
    figure, (axes,) = style.new_figure()
    data = measurement.data
    ranks = np.arange(1, max(RANKS) + 1)
    for index, (words, colour) in enumerate((("diagonal", "blue"), ("turning", "red"))):
        told = [_growth(parameters, int(rank), bool(index)) for rank in ranks]
        style.theory(axes, ranks, told, f"{words}: E log |(I + ηS)e|", colour)
        style.points(
            axes, data["rank"], data.grown[:, index, 0], data.grown[:, index, 1], f"HeteroSGD, {words}", colour
        )
    axes.axhline(0.0, color=style.COLOURS["grey"], lw=1, ls="--")
    axes.set(xlabel="rank of the spurious signal", ylabel="typical growth a step")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="off-diagonal-signal",
        paper="heterogeneity",
        place="Assumption 2, Eq. (7)",
        statement="Entries of the spurious signal off the diagonal, as large as those on it, undo the filtering, the "
        "more the larger its rank: growth typically gains eta^2 tau^2 (r2 - 3)/2 a step where it loses eta^2 tau^2 on "
        "the diagonal alone. At rank 2 half of the filtering is left, from rank 4 on the variation feeds the signal.",
        equation="lambda = E log |(I + eta S) e| = eta E s + eta^2 tau^2 (r2 - 3)/2 + ...,  Var S_ij = (1 + [i = j]) tau^2",
        scales={"smoke": Turning(128), "default": Turning(512), "full": Turning(4096)},
        measure=_measure,
        draw=_draw,
    ),
)
