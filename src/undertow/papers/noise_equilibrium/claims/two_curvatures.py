"""A symmetry-breaking term with two curvatures, and the one that determines the deviation of SGD from its minimum."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Float, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.papers._lanes import lanes
from undertow.problem import Problem
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PULLS = ((4.0, 1.0), (4.0, 4.0), (1.0, 4.0))
"""Curvatures of the symmetry-breaking term times zeta, along theta* and across it."""
HOME = 1.2
"""Norm of theta*."""
WINDOWS = 5
"""Number of equal windows of every run; the first is left out of the averages."""


@dataclass(frozen=True)
class Pulled:
    """SGD, batches of one, on |theta/|theta| - z|^2 with z = (1, ±tau) and a quadratic term around (1.2, 0)."""

    seeds: int
    """Number of runs at each step size, for each pair of curvatures."""
    step_size: float = 0.01
    """The smaller step size; the other is twice as large."""
    tau: float = 0.6
    """Spread of the directions z."""
    relaxations: float = 50.0
    """Length of each run, in relaxation times of the slowest direction."""


class Loss(eqx.Module):
    """The loss |theta/|theta| - z|^2 + 1/2 sum_j h_j (theta_j - theta*_j)^2."""

    curvatures: Float[Array, "2"]
    home: Float[Array, "2"]

    def __call__(self, params: Float[Array, "2"], z: Float[Array, "2"]) -> Float[Array, ""]:
        direction = params / jnp.linalg.norm(params)
        return jnp.sum((direction - z) ** 2) + jnp.sum(self.curvatures * (params - self.home) ** 2) / 2


def _first(params: Float[Array, "2"]) -> Float[Array, ""]:
    return params[0]


def _measure(parameters: Pulled, key: Key[Array, ""]) -> Measurement:
    p = parameters
    home = jnp.array([HOME, 0.0], jnp.float32)
    data = jnp.array([[1.0, p.tau], [1.0, -p.tau]], jnp.float32)
    checks, table, diverged = [], [], 0
    for index, (along, across) in enumerate(PULLS):
        problem = Problem(Loss(jnp.array([along, across], jnp.float32), home), data)
        # A = I, Sigma = 4 tau^2/|theta*|^2 across theta*, n = theta*/|theta*|: Eq. (22) over the step size
        printed = 2 * p.tau**2 / (along * HOME**3)
        ratios = []
        for factor in (1, 2):
            eta = factor * p.step_size
            window = round(p.relaxations / (eta * min(along, across)) / WINDOWS)
            run = descend(
                Minibatch(problem, 1), home, step_size=eta, steps=WINDOWS * window, every=window,
                average={"first": _first}, key=jax.random.fold_in(key, 2 * index + factor), seeds=p.seeds,
                lane_width=lanes(256), progress=False,
            )  # fmt: skip
            # the observation at step 0 is not an average, and the first window is left out
            shift = run.observed["first"][:, 2:].mean(axis=1) - HOME
            ratios.append(statistics.mean(shift / (eta * printed)))
            diverged += int(run.diverged.sum())
        (small, small_error), (large, large_error) = ratios
        left = lambda pull: 1 - pull / (2 / HOME**2 + pull)  # the factor for this curvature across theta*
        checks.append(
            Check(f"deviation s / Eq. (22), extrapolated, curvatures {along:g} along and {across:g} across",
                  2 * small - large, left(across), float(np.hypot(2 * small_error, large_error)), Within(0.02, 0.1),
                  printed=1.0, alternative=left(along) if along != across else None)
        )  # fmt: skip
        table.append(ratios)
    values = np.array(table)
    dataset = xarray.Dataset(
        {"ratio": (("pull", "step_size"), values[..., 0]), "error": (("pull", "step_size"), values[..., 1])},
        coords={"step_size": [p.step_size, 2 * p.step_size]},
    )
    return Measurement(tuple(checks), dataset, p.seeds, diverged)


def _draw(measurement: Measurement, parameters: Pulled) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    for index, ((along, across), colour) in enumerate(zip(PULLS, ("blue", "green", "purple"), strict=True)):
        row = data.isel(pull=index)
        predicted = measurement.checks[index].predicted
        style.theory(axes, [0, float(data.step_size[-1])], [predicted, predicted], "_", colour)
        shifted = data.step_size * (1 + 0.02 * (index - 1))
        style.points(axes, shifted, row.ratio, row.error, f"SGD, {along:g} along, {across:g} across", colour)
    axes.axhline(1.0, color=style.COLOURS["grey"], ls="--", lw=1, label="printed")
    axes.set_xticks([0.0, *data.step_size.values])
    axes.set(xlabel="step size", ylabel="deviation s / Eq. (22)", ylim=(0, 1.1))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="two-curvatures",
        paper="noise_equilibrium",
        place="Eq. (22)",
        statement="According to the paper, the deviation along an eigenvector of the symmetry-breaking term is the "
        "force of the noise divided by the curvature along it. The deviation is smaller, by a factor that depends on "
        "the curvature across the eigenvector: the noise acts in that direction, and the term also damps the "
        "fluctuations themselves.",
        equation="s = (1 - ζ h_m/H_mm) σ² Tr[ΣA]/(ζ h* n'A θ*),  m the noisy direction",
        alternative="The factor depends on the curvature along the eigenvector, not on the one across it.",
        rests_on=("broken-charge",),
        controls=True,
        scales={"smoke": Pulled(256), "default": Pulled(1024), "full": Pulled(8192)},
        measure=_measure,
        draw=_draw,
    ),
)
