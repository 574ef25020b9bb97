"""The averaged flow converges to the limiting flow on the manifold of minimisers as the step size falls."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow import _trees as trees
from undertow.dynamics.average import average
from undertow.dynamics.settle import settle
from undertow.figures import style
from undertow.manifold.averaged import Observe
from undertow.manifold.geometry import frame_at
from undertow.manifold.limit import Limit
from undertow.noise.label import LabelNoise
from undertow.papers.zero_loss.models.tanh_net import TanhNet
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARPNESS = 0.1 / 2.0 ** np.arange(4)
"""Step sizes times the largest curvature at the start."""


@dataclass(frozen=True)
class SmallSteps:
    """The averaged flow of label noise on random tanh networks with 100 parameters and 8 samples, from zero loss."""

    networks: int
    """Number of random networks."""
    slow_time: float = 4.0
    """Length of the path in slow time, steps * step_size^2."""
    strength: float = 0.5
    """Size of the label noise."""
    tolerance: float = 1e-8
    """Relative and absolute error of the solvers per step."""


def _distances(parameters: SmallSteps, key: Key[Array, ""]) -> tuple[np.ndarray, np.ndarray, float]:
    """Return distance and progress of the end of the averaged flow at each step size, relative to the limiting flow.

    The last number is the progress of the limiting flow in twice the time.
    """
    p = parameters
    net = TanhNet.draw(key, inputs=9, hidden=10, n=8, dtype=jnp.float64)
    start = settle(net.problem, net.params, tolerance=1e-11).params
    noise = LabelNoise(net.problem, p.strength)
    observe: Observe = {"point": trees.ravel}
    path = Limit(noise).solve(start, slow_time=2 * p.slow_time, num_saves=2, observe=observe, tolerance=p.tolerance)
    begin, end, later = path.observed["point"]
    displacement = end - begin
    sharpest = float(jnp.max(frame_at(net.problem, start).curvature))
    ends = []
    for eta in SHARPNESS / sharpest:
        flow = average(
            noise,
            start,
            step_size=eta,
            time=p.slow_time / eta,
            num_saves=1,
            observe=observe,
            tolerance=p.tolerance,
            estimate_error=False,
        )
        ends.append(flow.observed["point"][-1])
    away = np.stack(ends) - end[None]
    along = lambda vectors: vectors @ displacement / (displacement @ displacement)
    distance = np.linalg.norm(away, axis=1) / np.linalg.norm(displacement)
    return distance, 1 + along(away), float(along(later - begin))


def _measure(parameters: SmallSteps, key: Key[Array, ""]) -> Measurement:
    measured = [_distances(parameters, k) for k in jax.random.split(key, parameters.networks)]
    distance, progress = np.stack([m[0] for m in measured]), np.stack([m[1] for m in measured])
    orders = np.log2(distance[:, -2] / distance[:, -1])
    limits = 2 * progress[:, -1] - progress[:, -2]
    worst = lambda values: float(values[np.argmax(np.abs(values - 1))])
    checks = (
        Check("order of the distance to the limiting flow, from the two smallest steps", worst(orders), 1.0, 0.0,
              Within(0.1, 0.5), alternative=0.0),
        Check("progress along the limiting flow, extrapolated to small steps", worst(limits), 1.0, 0.0,
              Within(0.002, 0.1), alternative=min(m[2] for m in measured)),
    )  # fmt: skip
    data = xarray.Dataset({"distance": (("network", "sharpness"), distance)}, coords={"sharpness": SHARPNESS})
    return Measurement(checks, data, parameters.networks)


def _draw(measurement: Measurement, parameters: SmallSteps) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    largest = data.distance.max("network")
    style.theory(axes, SHARPNESS, float(largest[-1]) * SHARPNESS / SHARPNESS[-1], "slope 1")
    for index in range(data.sizes["network"]):
        label = "averaged flow, one network each" if index == 0 else "_"
        style.points(axes, SHARPNESS, data.distance[index], None, label)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="step size × largest curvature",
        ylabel="distance to the limiting flow / its length",
    )
    axes.set_xticks(SHARPNESS, [f"{value:g}" for value in SHARPNESS])
    axes.minorticks_off()
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="averaged-flow-limit",
        paper="optimisers",
        place="Small steps",
        statement="From a point of zero loss the averaged flow converges to the limiting flow of label noise on the "
        "manifold, with an error of first order in the step size.",
        equation="θ(T/η) → Y(T),  dY = -(δ²/4) P ∇ tr H dt",
        alternative="The averaged flow is twice as fast, -(δ²/2) P ∇ tr H, and its distance does not fall.",
        rests_on=("averaged-flow-trace", "label-noise-quarter"),
        scales={"smoke": SmallSteps(2), "default": SmallSteps(8), "full": SmallSteps(32)},
        measure=_measure,
        draw=_draw,
    ),
)
