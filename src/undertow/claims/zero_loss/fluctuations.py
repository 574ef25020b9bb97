"""How far SGD fluctuates about the manifold of minimisers: the process that makes the drift along it."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.claims import statistics
from undertow.claims.claim import Claim, Measurement
from undertow.claims.criterion import Check, Within
from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.models.linear import predict, weights
from undertow.noise.isotropic import Isotropic
from undertow.noise.label import LabelNoise
from undertow.problem import Regression


@dataclass(frozen=True)
class Hovering:
    """SGD on the overparametrised linear model from a point of zero loss, under label noise and isotropic noise."""

    seeds: int
    """Runs of each noise at each step size."""
    d: int = 8
    """Unknowns."""
    n: int = 3
    """Equations."""
    largest_step: float = 0.1
    """The larger of two step sizes, times the largest curvature; the other is half of it."""
    relaxations: float = 60.0
    """How long, in units of one over the step size times the least curvature; the last three quarters are used."""
    strength: float = 0.02
    """Size of the noises: small, so that the model does not go far."""


class _Residuals(eqx.Module):
    """Squared residuals, over the squared gradients grad f_i of label noise, or over n."""

    problem: Regression
    label: bool = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Array:
        squares = self.problem.residuals(params) ** 2
        if self.label:
            return jnp.mean(squares / (4 * self.problem.inputs**2 @ (params[0] ** 2 + params[1] ** 2)))
        return jnp.mean(squares) / squares.size


def _measure(parameters: Hovering, key: Key[Array, ""]) -> Measurement:
    """A deviation D has E D D' = eta X, HX + XH = Sigma, and a residual is grad f_i.D.

    Sigma = c H gives X = c/2 across the manifold: E r_i^2 = eta c/2 |grad f_i|^2. Sigma = c I gives X = c H^+/2, and
    J H^+ J' = n: E r_i^2 = eta c n/2.
    """
    p = parameters
    k1, k2 = jax.random.split(key)
    u, v = 1 + 0.2 * jax.random.normal(k1, (2, p.d), jnp.float64)
    z = jax.random.normal(k2, (p.n, p.d), jnp.float64)
    problem, start = Regression(predict, z, z @ weights((u, v))), (u, v)
    rows = 2 * np.asarray(jnp.concatenate([z * u[None], -z * v[None]], axis=1))
    curvature = np.linalg.eigvalsh(rows @ rows.T / p.n)
    noises = {"label": LabelNoise(problem, p.strength), "isotropic": Isotropic(problem, p.strength)}
    step_sizes = p.largest_step / np.array([2.0, 1.0]) / curvature.max()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in noises}
    diverged = 0
    for index, (name, noise) in enumerate(noises.items()):
        for eta in step_sizes:
            quarter = round(p.relaxations / (4 * eta * curvature.min()))
            run = descend(
                noise, start, step_size=float(eta), steps=4 * quarter, every=quarter, key=jax.random.fold_in(key, index),
                average={"square": _Residuals(problem, name == "label")}, seeds=p.seeds, lane_width=p.seeds,
                progress=False,
            )  # fmt: skip
            late = run.observed["square"][:, 2:].mean(axis=1)
            found[name].append(statistics.mean(late / (eta * p.strength**2)))
            diverged += int(run.diverged.sum())
    checks = []
    for name, words in (("label", "label noise"), ("isotropic", "isotropic noise")):
        (small, e1), (large, e2) = found[name]
        checks.append(
            Check(f"{words}: variance across the manifold over eta H^-1 Sigma, extrapolated", 2 * small - large, 0.5,
                  float(np.hypot(2 * e1, e2)), Within(0.01, 0.1), printed=1.0 if name == "label" else None)
        )  # fmt: skip
    data = xarray.Dataset(
        {name: (("step_size", "part"), np.array(values)) for name, values in found.items()},
        coords={"step_size": step_sizes, "part": ["mean", "error"]},
    )
    return Measurement(tuple(checks), data, p.seeds, diverged)


def _draw(measurement: Measurement, parameters: Hovering) -> Any:
    figure, (axes,) = style.new_figure()
    data = measurement.data
    ends = np.array([0.0, float(data.step_size.max())])
    style.theory(axes, ends, [0.5, 0.5], "stationary, small steps: 1/2")
    style.theory(axes, ends, [1.0, 1.0], "as printed", "red")
    for name, words, colour in (("label", "label noise", "blue"), ("isotropic", "isotropic noise", "green")):
        style.points(axes, data.step_size, data[name][:, 0], data[name][:, 1], words, colour)
    axes.set(xlabel="step size", ylabel="variance across the manifold / (η H⁻¹Σ)", ylim=(0, 1.1))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="fluctuations",
        paper="zero_loss",
        place="Section 1.1 and Figure 1",
        statement="About the manifold SGD fluctuates with the covariance eta X, HX + XH = Sigma. Under label noise "
        "that is eta/2 in every direction across: a standard Gaussian scaled by sqrt(eta/2), not by sqrt(eta).",
        equation="E D D' = eta L_H^-1(Sigma) = (eta/2) delta^2 across, for Sigma = delta^2 H",
        scales={"smoke": Hovering(32), "default": Hovering(128), "full": Hovering(1024)},
        measure=_measure,
        draw=_draw,
    ),
)
