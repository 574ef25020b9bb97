"""Label-noise SGD on a network, compared with its limiting flow at several step sizes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow import _trees as trees
from undertow.dynamics.descend import descend
from undertow.dynamics.settle import settle
from undertow.figures import style
from undertow.manifold.geometry import frame_at
from undertow.manifold.limit import Limit
from undertow.noise.label import LabelNoise
from undertow.papers.zero_loss.models.tanh_net import TanhNet
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Network:
    """Label-noise SGD on a tanh network with 100 parameters and 8 samples, from a point of zero loss."""

    seeds: int
    """Number of runs at each step size."""
    largest_step: float = 0.4
    """Largest step size times the largest curvature at the start; three more are halved in turn."""
    slow_time: float = 4.0
    """Length of each run in slow time, steps * step_size^2."""
    strength: float = 0.5
    """Size of the label noise."""


def _measure(parameters: Network, key: Key[Array, ""]) -> Measurement:
    """Measure the median progress of SGD along the path of the limiting flow."""
    net = TanhNet.draw(key, inputs=9, hidden=10, n=8, dtype=jnp.float64)
    start = settle(net.problem, net.params, tolerance=1e-11).params
    noise = LabelNoise(net.problem, parameters.strength)
    path = Limit(noise).solve(start, slow_time=parameters.slow_time, num_saves=2, observe={"point": trees.ravel})
    begin, halfway, end = path.observed["point"]
    displacement = end - begin
    medians, errors, diverged = [], [], 0
    step_sizes = parameters.largest_step / 2.0 ** np.arange(4) / float(jnp.max(frame_at(net.problem, start).curvature))
    for index, eta in enumerate(step_sizes):
        run = descend(
            noise, start, step_size=eta, steps=round(parameters.slow_time / eta**2), seeds=parameters.seeds,
            key=jax.random.fold_in(key, index), observe={}, progress=False,
        )  # fmt: skip
        diverged += int(run.diverged.sum())
        ends = np.asarray(jax.vmap(trees.ravel)(run.params))[~run.diverged]
        progress = (ends - begin) @ displacement / (displacement @ displacement)
        # the median, because at a large step size a few runs move to another part of the manifold
        middle, error = statistics.median(progress)
        medians.append(middle)
        errors.append(error)
    value, error = 2 * medians[-1] - medians[-2], float(np.hypot(2 * errors[-1], errors[-2]))
    slower = float((halfway - begin) @ displacement / (displacement @ displacement))
    check = Check(
        "median progress along the limiting flow, extrapolated to small steps", float(value), 1.0, error,
        Within(0.03, 0.15), alternative=slower,
    )  # fmt: skip
    data = xarray.Dataset(
        {"progress": ("step_size", medians), "error": ("step_size", errors)},
        coords={"step_size": step_sizes},
    )
    return Measurement((check,), data, parameters.seeds, diverged)


def _draw(measurement: Measurement, parameters: Network) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.points(axes, data.step_size, data.progress, data.error, "label-noise SGD")
    axes.axhline(1.0, color=style.COLOURS["grey"], label="limiting flow")
    axes.set(xlabel="step size", ylabel="progress along the limiting flow", xlim=(0, None))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="network-follows-limit",
        paper="zero_loss",
        place="Theorem 4.6 and Corollary 5.2",
        statement="Label-noise SGD on a tanh network moves as far as its limiting flow predicts, up to an excess that "
        "vanishes with the step size.",
        equation="x(T/η²) → Y(T),  dY = -(δ²/4) P ∇ tr H dt",
        alternative="The flow is half as fast, -(δ²/8) P ∇ tr H.",
        rests_on=("label-noise-quarter",),
        scales={"smoke": Network(32), "default": Network(256), "full": Network(2048)},
        measure=_measure,
        draw=_draw,
    ),
)
