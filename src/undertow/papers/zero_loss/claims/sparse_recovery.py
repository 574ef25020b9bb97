"""The number of equations that the weighted l1 program needs, and the dimension of its descent cone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Float, Key
from scipy.optimize import linprog

from undertow.figures import style
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONES = 5000
"""Number of Gaussian vectors with which the dimension of a cone is estimated."""
DATA = ("signs", "Gaussian", "Gaussian, plain l1")


@dataclass(frozen=True)
class Signals:
    """Sparse vectors of signs, and equations that are added one by one until the program finds the vector."""

    draws: int
    """Number of vectors of each sparsity, for each kind of equations."""
    d: int = 40
    """Number of unknowns."""
    few: int = 4
    """Number of nonzero entries of the sparser vectors; the others have twice as many."""


def cone_dimension(rng: np.random.Generator, d: int, sparsity: int, draws: int = CONES) -> tuple[float, float]:
    """Return the statistical dimension of the descent cone of the l1 norm at a k-sparse vector, with standard error.

    It is the mean over Gaussian g of the least of sum_{i <= k} (g_i - tau)^2 + sum_{i > k} (|g_i| - tau)_+^2 over
    tau >= 0 (Amelunxen, Lotz, McCoy and Tropp, 2014): the squared distance of g to the cone of subgradients.
    """
    g = rng.standard_normal((draws, d))
    on, off = g[:, :sparsity], np.abs(g[:, sparsity:])
    low, high = np.zeros((draws, 1)), np.full((draws, 1), float(np.abs(g).max()))
    for _ in range(40):
        tau = (low + high) / 2
        falling = np.sum(on - tau, axis=1, keepdims=True) + np.sum(np.maximum(off - tau, 0), axis=1, keepdims=True) > 0
        low, high = np.where(falling, tau, low), np.where(falling, high, tau)
    return statistics.mean(np.sum((on - low) ** 2, axis=1) + np.sum(np.maximum(off - low, 0) ** 2, axis=1))


def _recovers(z: Float[np.ndarray, "n d"], truth: Float[np.ndarray, " d"], weighted: bool) -> bool:
    """Return whether w* minimises sum_j s_j |w_j| subject to Z w = Z w*; s_j = (4/n) sum_i z_ij^2, or 1."""
    costs = 4 * np.mean(z**2, axis=0) if weighted else np.ones(len(truth))
    program = linprog(np.concatenate([costs, costs]), A_eq=np.hstack([z, -z]), b_eq=z @ truth, method="highs-ds")
    best = program.x[: len(truth)] - program.x[len(truth) :]
    return float(np.abs(best - truth).max()) < 1e-6


def _needed(z: Float[np.ndarray, "d d"], truth: Float[np.ndarray, " d"], weighted: bool) -> int:
    """Return the least n at which the first n equations suffice, by bisection (monotone in n for equal weights)."""
    fails, suffices = 0, len(truth)
    while suffices - fails > 1:
        n = (fails + suffices) // 2
        fails, suffices = (fails, n) if _recovers(z[:n], truth, weighted) else (n, suffices)
    return suffices


def _measure(parameters: Signals, key: Key[Array, ""]) -> Measurement:
    p = parameters
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    checks, needed, sizes = [], [], []
    for sparsity in (p.few, 2 * p.few):
        size, size_error = cone_dimension(rng, p.d, sparsity)
        rival = 2 * sparsity * np.log(p.d / sparsity) / (size + 0.5)
        rows = []
        for name in DATA:
            counts = []
            for _ in range(p.draws):
                z = rng.choice([-1.0, 1.0], (p.d, p.d)) if name == "signs" else rng.standard_normal((p.d, p.d))
                truth = np.zeros(p.d)
                truth[:sparsity] = rng.choice([-1.0, 1.0], sparsity)
                counts.append(_needed(z, truth, weighted=name == "Gaussian"))
            mean, error = statistics.mean(np.array(counts))
            # exact for the last kind: P(failure at n) is twice the sum of every second intrinsic volume above n
            exact = name == "Gaussian, plain l1"
            criterion = Within(0.02, 0.25) if exact else Within(0.1, 0.25)
            ratio = mean / (size + 0.5)
            spread = ratio * float(np.hypot(error / mean, size_error / size))
            checks.append(
                Check(f"{name}, k = {sparsity}: mean number of equations needed / (dimension + 1/2)", ratio, 1.0,
                      spread, criterion, alternative=rival if exact and sparsity == p.few else None)
            )  # fmt: skip
            rows.append(counts)
        bound = 2 * sparsity * np.log(p.d / sparsity) + 1.25 * sparsity
        mean, error = statistics.mean(np.array(rows[0]))
        checks.append(
            Check(f"signs, k = {sparsity}: mean number of equations needed / (2k ln(d/k) + 5k/4)", mean / bound,
                  (size + 0.5) / bound, error / bound, Below(1.0))
        )  # fmt: skip
        needed.append(rows)
        sizes.append(size)
    data = xarray.Dataset(
        {"needed": (("sparsity", "data", "draw"), np.array(needed)), "dimension": ("sparsity", sizes)},
        coords={"sparsity": [p.few, 2 * p.few]},
        attrs={"data": list(DATA)},
    )
    return Measurement(tuple(checks), data, p.draws)


def _draw(measurement: Measurement, parameters: Signals) -> "Figure":
    figure, panels = style.new_figure(2, width=4.2)
    data = measurement.data
    for axes, sparsity in zip(panels, data.sparsity.values, strict=True):
        case = data.sel(sparsity=sparsity)
        counts = case.needed.values
        n = np.arange(int(counts.min()) - 1, int(counts.max()) + 2)
        for row, (name, colour) in enumerate(zip(data.attrs["data"], ("blue", "green", "red"), strict=True)):
            shares = [statistics.share(counts[row] <= m) for m in n]
            style.points(axes, n + 0.15 * (row - 1), [s for s, _ in shares], [e for _, e in shares], name, colour)
        axes.axvline(float(case.dimension), color=style.COLOURS["grey"], lw=1.5, label="dimension of the cone")
        axes.set(
            xlabel="equations n", ylabel="share recovered", ylim=(-0.06, 1.06), title=f"{sparsity} nonzero entries"
        )
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="equations-needed",
        paper="zero_loss",
        place="Lemmas D.7 and D.8, Eq. (36) and (40)",
        statement="The weighted l1 program finds a k-sparse vector from a multiple of k ln(d/k) + k equations, with "
        "signs or Gaussian entries. The factor is below 2: on average the number needed is the statistical dimension "
        "of the descent cone of the l1 norm plus 1/2, and the weights of Gaussian equations hardly change it.",
        equation="E min{n: argmin ∑_j s_j |w_j| = w*} = δ(D) + 1/2 for Gaussian Z and equal weights",
        alternative="The number needed is 2k ln(d/k), the leading term of the bound.",
        rests_on=("flow-minimises-l1",),
        controls=True,
        scales={"smoke": Signals(36), "default": Signals(100, d=60), "full": Signals(200, d=100)},
        measure=_measure,
        draw=_draw,
        long=True,
    ),
)
