"""SGD with momentum against SGD with the effective step size, in distribution."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.papers._lanes import lanes
from undertow.papers.optimisers.models.copies import Coordinate, Copies, wave
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = {0.5: (1 / 16, 1 / 32, 1 / 64), 0.9: (1 / 64, 1 / 128, 1 / 256)}
"""Effective step sizes for each momentum β; the time β η/(1 - β)² by which the velocity lags is far below one."""
START = 2.0
LANE = 4


@dataclass(frozen=True)
class Momentum:
    """One parameter with gradient noise of size 1/√h at the effective step size h, so that noise and slope matter."""

    runs: int
    """Number of runs with each setting."""
    copies: int = 4096
    """Number of independent copies of the parameter in a run."""
    time: float = 1.0
    """Length of each run, steps * effective step size."""


def effective_step(step_size: float, beta: float) -> float:
    """Return the step size of SGD that has the distribution of SGD with momentum."""
    return step_size / (1 - beta)


def _ends(parameters: Momentum, effective: float, step_size: float, beta: float, key: Key[Array, ""]) -> np.ndarray:
    """Return the last params of SGD for the noise and the number of steps of an effective step size."""
    run = descend(
        Copies(Coordinate(wave(), effective**-0.5)), jnp.full(parameters.copies, START), step_size=step_size,
        momentum=beta, steps=round(parameters.time / effective), seeds=parameters.runs, key=key,
        lane_width=lanes(LANE), progress=False,
    )  # fmt: skip
    return np.ravel(run.params)


def _ratio(values: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """Return the ratio of the variances of paired samples, with its standard error."""
    above, below = (values - values.mean()) ** 2, (base - base.mean()) ** 2
    ratio = above.mean() / below.mean()
    return float(ratio), statistics.mean(above - ratio * below)[1] / float(below.mean())


def _rows(parameters: Momentum, beta: float, key: Key[Array, ""]) -> tuple[np.ndarray, float]:
    """Return the gap of the means and the ratio of the variances at each step, with errors, and the rival's ratio."""
    rows, rival = [], float("nan")
    for index, effective in enumerate(STEPS[beta]):
        eta, k = effective * (1 - beta), jax.random.fold_in(key, index)
        heavy = _ends(parameters, effective, eta, beta, k)
        plain = _ends(parameters, effective, effective_step(eta, beta), 0.0, k)
        if index == 0:
            rival = heavy.var() / _ends(parameters, effective, eta, 0.0, k).var()
        rows.append((*statistics.mean(heavy - plain), *_ratio(heavy, plain)))
    return np.array(rows).T, float(rival)


def _measure(parameters: Momentum, key: Key[Array, ""]) -> Measurement:
    checks, tables = [], []
    for index, (beta, steps) in enumerate(STEPS.items()):
        table, rival = _rows(parameters, beta, jax.random.fold_in(key, index))
        gap, error, ratio, ratio_error = table
        tables.append(table)
        order, uncertainty = statistics.slope(np.log(steps), np.log(np.abs(gap)), error / np.abs(gap))
        checks += [
            Check(f"β = {beta:g}: variance with momentum / without, extrapolated to small steps",
                  2 * ratio[2] - ratio[1], 1.0, float(np.hypot(2 * ratio_error[2], ratio_error[1])),
                  Within(0.03, 0.15), alternative=rival),
            Check(f"β = {beta:g}: order in η of the difference of the means", order, 1.0, uncertainty,
                  Within(0.3, 0.5), alternative=0.0),
        ]  # fmt: skip
    names = ("gap", "error", "ratio", "ratio_error")
    data = xarray.Dataset(
        {name: (("beta", "index"), np.stack([table[row] for table in tables])) for row, name in enumerate(names)}
        | {"step": (("beta", "index"), np.array(list(STEPS.values())))},
        coords={"beta": list(STEPS)},
    )
    return Measurement(tuple(checks), data, parameters.runs * parameters.copies)


def _draw(measurement: Measurement, parameters: Momentum) -> "Figure":
    figure, panels = style.new_figure(2, width=4.2)
    for beta, colour, marker in zip(STEPS, ("blue", "red"), ("o", "s"), strict=True):
        row = measurement.data.sel(beta=beta)
        style.points(panels[0], row.step, abs(row.gap), row.error, f"β = {beta:g}", colour, marker=marker)
        style.theory(panels[0], row.step, abs(row.gap[-1]) * row.step / row.step[-1], "", "grey")
        style.points(panels[1], row.step, row.ratio, row.ratio_error, f"β = {beta:g}", colour, marker=marker)
    style.theory(panels[1], [0.0, 1 / 16], [1.0, 1.0], "the same variance")
    panels[0].set(xscale="log", yscale="log", xlabel="effective step size η/(1 − β)", ylabel="difference of the means",
                  title="lines: proportional to η")  # fmt: skip
    panels[1].set(xlabel="effective step size η/(1 − β)", ylabel="variance with momentum / without")
    panels[0].xaxis.set_minor_formatter("")
    for axes in panels:
        axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="momentum-effective-step",
        paper="optimisers",
        place="Wang et al., arXiv 2307.15196: SGD with momentum and SGD have the same weak limit",
        statement="SGD with step size η and momentum β has the distribution of SGD with step size η/(1 - β) after the "
        "same number of steps, up to a difference of first order in η.",
        equation="θ of (η, β) ≈ θ of (η/(1 - β), 0) in distribution, with an error O(η)",
        alternative="The step size of the SGD with the same distribution is η itself.",
        scales={"smoke": Momentum(4), "default": Momentum(32), "full": Momentum(256)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
)
