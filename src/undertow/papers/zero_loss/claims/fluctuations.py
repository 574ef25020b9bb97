"""The fluctuations of SGD about the manifold of minimisers, which cause the drift along it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.noise.label import LabelNoise
from undertow.papers.zero_loss.models.linear import predict
from undertow.problem import Regression
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Hovering:
    """SGD on the overparametrised linear model from a point of zero loss, with label noise."""

    seeds: int
    """Number of runs at each step size."""
    d: int = 8
    """Number of unknowns."""
    n: int = 3
    """Number of equations."""
    largest_step: float = 0.1
    """Larger of two step sizes, times the largest curvature; the other is half of it."""
    relaxations: float = 60.0
    """Number of steps times the step size and the least curvature; averages are over the last three quarters."""
    strength: float = 0.02
    """Size of the label noise, small, so that the model moves little along the manifold."""


class _Residuals(eqx.Module):
    """The observable: the mean of r_i^2/|grad f_i|^2."""

    problem: Regression

    def __call__(self, params: PyTree) -> Array:
        steepness = 4 * self.problem.inputs**2 @ (params[0] ** 2 + params[1] ** 2)
        return jnp.mean(self.problem.residuals(params) ** 2 / steepness)


def _measure(parameters: Hovering, key: Key[Array, ""]) -> Measurement:
    """Measure the variance of the deviation D through r_i = grad f_i.D, which has Var D |grad f_i|^2 as variance."""
    p = parameters
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    u, v = 1 + 0.2 * rng.normal(size=(2, p.d))
    z = rng.normal(size=(p.n, p.d))
    rows = 2 * np.concatenate([z * u, -z * v], axis=1)
    curvature = np.linalg.eigvalsh(rows @ rows.T / p.n)
    problem = Regression(predict, jnp.asarray(z), jnp.asarray(z @ (u**2 - v**2)))
    noise, start = LabelNoise(problem, p.strength), (jnp.asarray(u), jnp.asarray(v))
    step_sizes = p.largest_step / np.array([2.0, 1.0]) / curvature.max()
    variances, diverged = [], 0
    for index, eta in enumerate(step_sizes):
        quarter = round(p.relaxations / (4 * eta * curvature.min()))
        run = descend(
            noise, start, step_size=float(eta), steps=4 * quarter, every=quarter, key=jax.random.fold_in(key, index),
            average={"square": _Residuals(problem)}, seeds=p.seeds, lane_width=p.seeds, progress=False,
        )  # fmt: skip
        # the observation at step 0 is not an average, and the first quarter is left out
        late = run.observed["square"][:, 2:].mean(axis=1)
        variances.append(statistics.mean(late / (eta * p.strength**2)))
        diverged += int(run.diverged.sum())
    (small, e1), (large, e2) = variances
    check = Check(
        "variance across the manifold / η δ², extrapolated to small steps", 2 * small - large, 0.5,
        float(np.hypot(2 * e1, e2)), Within(0.01, 0.1), alternative=1.0,
    )  # fmt: skip
    data = xarray.Dataset(
        {"variance": ("step_size", [m for m, _ in variances]), "error": ("step_size", [e for _, e in variances])},
        coords={"step_size": step_sizes * curvature.max()},
    )
    return Measurement((check,), data, p.seeds, diverged)


def _draw(measurement: Measurement, parameters: Hovering) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    ends = np.array([0.0, float(data.step_size.max())])
    style.theory(axes, ends, [0.5, 0.5], "stationary, small steps")
    style.points(axes, data.step_size, data.variance, data.error, "label-noise SGD")
    axes.set(xlabel="step size × largest curvature", ylabel="variance across the manifold / ηδ²", ylim=(0, 1))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="fluctuations",
        paper="zero_loss",
        place="Section 1.1 and Figure 1",
        statement="Around the manifold SGD fluctuates with the covariance η X, where HX + XH = Σ. Under label noise of "
        "strength δ this is η δ²/2 in every normal direction.",
        equation="E D D' = η L_H⁻¹(Σ) = (η/2) δ² across, for Σ = δ² H",
        alternative="The covariance is η H⁻¹ Σ, without the factor 1/2 of the Lyapunov equation: η δ².",
        rests_on=("label-noise-covariance",),
        scales={"smoke": Hovering(64), "default": Hovering(256), "full": Hovering(2048)},
        measure=_measure,
        draw=_draw,
    ),
)
