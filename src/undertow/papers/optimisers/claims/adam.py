"""Adam with label noise moves on the manifold with a metric that fluctuates with its params."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.figures import style
from undertow.papers.optimisers.models.adam_probe import AdamProbe, draw_probe, predict_adam, run_adam
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOMENTA = (0.0, 0.9)
RATIOS = (0.01, 0.1, 1.0, 10.0)
"""(1 - b2)/(eta lambda), lambda the least curvature of S^(1/2) H S^(1/2) at the start."""


@dataclass(frozen=True)
class AdamLimit:
    """Adam with label noise on u^2 - v^2, 20 unknowns, 10 equations with inputs +-1, from zero loss at u = v = 0.8."""

    seeds: int
    """Number of runs of Adam at each ratio."""
    step_size: float = 0.002
    """The step size of Adam."""
    slow_time: float = 0.1
    """Length of the path in slow time, steps * step_size^2."""


def _ends(probe: AdamProbe, parameters: AdamLimit, key: Key[Array, ""]) -> dict[str, np.ndarray]:
    """Return errors over the length of the limiting flow, and Adam's share of the shift to the corrected flow."""
    p = parameters
    begin, least = np.concatenate(probe.start), probe.least_curvature(probe.start)
    names = ("plain", "corrected", "error", "share", "share_error")
    table = {name: np.empty((len(MOMENTA), len(RATIOS))) for name in names}
    for i, b1 in enumerate(MOMENTA):
        for j, ratio in enumerate(RATIOS):
            settings = (b1, 1 - ratio * p.step_size * least, p.step_size, p.slow_time)
            ends = run_adam(probe, *settings, p.seeds, jax.random.fold_in(key, len(RATIOS) * i + j))
            plain, corrected = (predict_adam(probe, *settings, corrections) for corrections in (False, True))
            length = np.linalg.norm(plain - begin)
            apart = corrected - plain
            shares = (ends.points - plain[None]) @ apart / (apart @ apart)
            table["plain"][i, j] = np.linalg.norm(ends.mean - plain) / length
            table["corrected"][i, j] = np.linalg.norm(ends.mean - corrected) / length
            table["error"][i, j] = ends.standard_error / length
            table["share"][i, j] = shares.mean()
            table["share_error"][i, j] = shares.std(ddof=1) / p.seeds**0.5
    return table


def _measure(parameters: AdamLimit, key: Key[Array, ""]) -> Measurement:
    data_key, run_key = jax.random.split(key)
    table = _ends(draw_probe(data_key), parameters, run_key)
    checks = []
    for i, b1 in enumerate(MOMENTA):
        for ratio in (1.0, 10.0):
            j = RATIOS.index(ratio)
            what = f"shift of Adam from the plain flow / shift of the corrected flow, b1 = {b1:g}, ratio {ratio:g}"
            share, error = float(table["share"][i, j]), float(table["share_error"][i, j])
            checks.append(Check(what, share, 1.0, error, Within(0.15, 0.5), alternative=0.0))
    worst = np.unravel_index(np.argmax(table["corrected"]), table["corrected"].shape)
    checks.append(
        Check("largest error of the corrected flow / distance moved", float(table["corrected"][worst]), 0.0,
              float(table["error"][worst]), Below(0.1), alternative=float(np.max(table["plain"])))
    )  # fmt: skip
    dims = ("momentum", "ratio")
    data = xarray.Dataset(
        {name: (dims, values) for name, values in table.items()},
        coords={"momentum": list(MOMENTA), "ratio": list(RATIOS)},
    )
    return Measurement(tuple(checks), data, parameters.seeds)


def _draw(measurement: Measurement, parameters: AdamLimit) -> "Figure":
    figure, panels = style.new_figure(len(MOMENTA))
    for axes, (b1, data) in zip(panels, measurement.data.groupby("momentum"), strict=True):
        data = data.squeeze()
        style.points(axes, data.ratio, data.plain, data.error, "limit of small steps")
        style.points(axes, data.ratio, data.corrected, data.error, "with the corrections", "red", "s")
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="(1 - b₂)/(ηλ)", ylabel="distance to Adam / distance moved")
        axes.set_title(f"b₁ = {b1:g}")
        axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="adam-limit-metric",
        paper="optimisers",
        place="Limit with a metric",
        statement="Adam with label noise follows the limiting flow in its metric, with the correction for a metric "
        "that fluctuates with the params, for (1 - b2)/(ηλ) between 0.01 and 10, where λ is the least curvature in the "
        "metric.",
        equation="dθ/dτ = -(c/4) P_S S ∇tr(S H) - (1/η) P_S S'(v) E[m w],  dv/dτ = κ (E g² - v)",
        alternative="The metric is independent of the gradients that it multiplies: Adam follows the flow without the "
        "correction.",
        scales={"smoke": AdamLimit(24), "default": AdamLimit(64), "full": AdamLimit(64, step_size=0.001)},
        measure=_measure,
        draw=_draw,
    ),
)
