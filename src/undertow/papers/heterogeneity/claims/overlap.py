"""The overlap of random subspaces, which are nearly orthogonal in high dimension."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.figures import style
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Subspaces:
    """Two independent random subspaces."""

    draws: int
    """Number of pairs in each dimension."""
    first: int = 3
    """Dimension r1 of the first subspace."""
    second: int = 2
    """Dimension r2 of the second subspace."""
    smallest: int = 20
    """Smallest dimension d of the ambient space."""
    doublings: int = 5
    """Number of times that d is doubled."""


def _measure(parameters: Subspaces, key: Key[Array, ""]) -> Measurement:
    p = parameters
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    dimensions = p.smallest * 2 ** np.arange(p.doublings + 1)
    basis = lambda d, r: np.linalg.qr(rng.standard_normal((p.draws, d, r)))[0]
    norm = lambda x: np.linalg.norm(x, ord=2, axis=(1, 2))
    scaled = [_overlap(basis(d, p.first), basis(d, p.second)) * np.sqrt(d) for d in dimensions]
    overlaps = [statistics.mean(x) for x in scaled]
    logs = np.log(dimensions) - np.log(dimensions).mean()
    weights = logs / (logs**2).sum()
    slope = float(weights @ np.log([m for m, _ in overlaps])) - 0.5
    error = float(np.sqrt(weights**2 @ np.array([(e / m) ** 2 for m, e in overlaps])))
    limit = statistics.mean(norm(rng.standard_normal((20 * p.draws, p.first, p.second))))
    ratio = overlaps[-1][0] / limit[0]
    beyond = statistics.share(np.concatenate(scaled) > 2 * np.sqrt(p.first + p.second))
    # Gaussian M_i = U_i R_i, both with r1 columns: with another number in the second, the shape of R_1^-1 does not fit
    pair = [rng.standard_normal((p.draws, p.smallest, p.first)) for _ in range(2)]
    (one, r_one), (two, r_two) = (_factors(m) for m in pair)
    across = lambda a, b: np.swapaxes(a, 1, 2) @ b
    middle = np.linalg.solve(np.swapaxes(r_one, 1, 2), across(*pair))
    missed = lambda right: np.sum((middle @ np.linalg.inv(right) - across(one, two)) ** 2)
    explained = [float(1 - missed(right) / np.sum(across(one, two) ** 2)) for right in (r_two, r_one)]
    edge = (np.sqrt(p.first) + np.sqrt(p.second)) / limit[0]
    checks = (
        Check("exponent a of the overlap, which is proportional to d^a", slope, -0.5, error, Within(0.02, 0.1),
              alternative=-1.0),
        Check(
            f"√d × overlap at d = {dimensions[-1]} / mean norm of a Gaussian r1 × r2 matrix", ratio, 1.0,
            ratio * float(np.hypot(overlaps[-1][1] / overlaps[-1][0], limit[1] / limit[0])), Within(0.01, 0.1),
            alternative=float(edge),
        ),
        Check("share of pairs whose overlap exceeds 2 √((r1 + r2)/d)", beyond[0], 0.0, beyond[1], Below(0.01)),
        Check("(108): share of U1'U2 that R1⁻ᵀ M1'M2 R2⁻¹ explains", explained[0], 1.0, 0.0, Within(1e-9, 0.01),
              printed=explained[1], alternative=explained[1]),
    )  # fmt: skip
    data = xarray.Dataset(
        {
            "overlap": ("d", [m / np.sqrt(d) for (m, _), d in zip(overlaps, dimensions, strict=True)]),
            "error": ("d", [e / np.sqrt(d) for (_, e), d in zip(overlaps, dimensions, strict=True)]),
            "limit": limit[0],
        },
        coords={"d": dimensions},
    )
    return Measurement(checks, data, p.draws)


def _overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return |U1'U2|, the largest cosine between two subspaces."""
    return np.linalg.norm(np.swapaxes(first, 1, 2) @ second, ord=2, axis=(1, 2))


def _factors(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return U and R of M = U R, with orthonormal columns of U and a positive diagonal of R, which are unique."""
    u, r = np.linalg.qr(matrices)
    signs = np.sign(np.diagonal(r, axis1=1, axis2=2))
    return u * signs[:, None], signs[..., None] * r


def _draw(measurement: Measurement, parameters: Subspaces) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.theory(axes, data.d, float(data.limit) / np.sqrt(data.d), "norm of a Gaussian r1 × r2 matrix / √d")
    style.points(axes, data.d, data.overlap, data.error, "largest cosine, mean")
    axes.set(xlabel="dimension d", ylabel="overlap |U*'V*|", xscale="log", yscale="log")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="random-overlap",
        paper="heterogeneity",
        place="Proposition 1 and Eq. (108)",
        statement="Random subspaces of dimensions r1 and r2 overlap by at most √((r1 + r2)/d) up to a constant; for "
        "large d the overlap is the norm of a Gaussian r1 × r2 matrix divided by √d. Eq. (108) prints R1⁻¹ where the "
        "proof needs R2⁻¹.",
        equation="|U*'V*| ≤ t √((r1 + r2)/d)",
        alternative="The overlap falls like 1/d, as the mean square of a cosine does; its size is √r1 + √r2, the "
        "limit for large matrices; and (108) is right as printed.",
        controls=True,
        scales={"smoke": Subspaces(1000), "default": Subspaces(4000), "full": Subspaces(20_000)},
        measure=_measure,
        draw=_draw,
    ),
)
