"""The batch size and the step size that leave the distribution of Adam and of SGD unchanged."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.optimisers import SGD, Adam
from undertow.papers._lanes import lanes
from undertow.papers.optimisers.models.copies import Coordinate, Copies, wave
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = (1, 4, 16)
OPTIMISERS = ("Adam", "SGD")
RULES = ("step size × √k", "step size × k")
START = 1.0
LANE = 8

Moments = tuple[float, float, float, float]
"""Mean and variance over the samples, each with its standard error."""


@dataclass(frozen=True)
class Scaling:
    """One parameter with much gradient noise, at the batch sizes 1, 4 and 16."""

    runs: int
    """Number of runs with each setting."""
    copies: int = 4096
    """Number of independent copies of the parameter in a run."""
    noise: float = 16.0
    """Size of the gradient noise at batch size 1."""
    steps: int = 256
    """Number of steps at batch size 1; 1/k of it at batch size k."""
    adam_step: float = 0.0625
    """Step size of Adam at batch size 1."""
    sgd_step: float = 0.005
    """Step size of SGD at batch size 1."""
    forgotten_m: float = 0.05
    """1 - b1 of Adam at batch size 1."""
    forgotten_v: float = 0.002
    """1 - b2 of Adam at batch size 1."""


def square_root(step_size: float, factor: int) -> float:
    """Return the step size at `factor` times the batch size, by the square-root rule."""
    return step_size * factor**0.5


def linear(step_size: float, factor: int) -> float:
    """Return the step size at `factor` times the batch size, by the linear rule."""
    return step_size * factor


def _moments(parameters: Scaling, name: str, rule: str, factor: int, key: Key[Array, ""]) -> Moments:
    """Return the moments at the end of runs with `factor` times the batch size and 1/`factor` of the steps."""
    p = parameters
    noise = Copies(Coordinate(wave(), p.noise / factor**0.5))
    start = jnp.full(p.copies, START)
    adam = Adam(b1=1 - p.forgotten_m * factor, b2=1 - p.forgotten_v * factor, eps=0.0, bias_correction=False)
    stationary = {"m": noise.mean(start), "v": noise.second_moment(start)}
    scaled = {RULES[0]: square_root, RULES[1]: linear}[rule]
    run = descend(
        noise, start, step_size=scaled(p.adam_step if name == "Adam" else p.sgd_step, factor), steps=p.steps // factor,
        seeds=p.runs, key=key, optimiser=adam if name == "Adam" else SGD(),
        optimiser_state=stationary if name == "Adam" else None, lane_width=lanes(LANE), progress=False,
    )  # fmt: skip
    ends = np.ravel(run.params)
    mean, error = statistics.mean(ends)
    return mean, error, *statistics.mean((ends - mean) ** 2)


def _checks(name: str, rule: str, moments: dict[tuple[str, str, int], Moments]) -> list[Check]:
    """Return the shift of the mean and the ratio of the variances at 4 and 16 times the batch size."""
    rival = RULES[1 - RULES.index(rule)]
    mean, error, variance, spread = moments[name, rule, 1]
    deviation = variance**0.5
    checks = []
    for factor in (16, 4):
        shifted, shift_error, scaled, scaled_error = moments[name, rule, factor]
        other, _, rival_variance, _ = moments[name, rival, factor]
        checks += [
            Check(f"{name}, batch × {factor}, {rule}: variance / variance at batch size 1", scaled / variance, 1.0,
                  float(np.hypot(scaled_error, spread * scaled / variance) / variance), Within(0.06, 0.2),
                  alternative=rival_variance / variance),
            Check(f"{name}, batch × {factor}, {rule}: shift of the mean in standard deviations",
                  (shifted - mean) / deviation, 0.0, float(np.hypot(shift_error, error) / deviation),
                  Within(0.03, 0.1), alternative=(other - mean) / deviation),
        ]  # fmt: skip
    return checks


def _measure(parameters: Scaling, key: Key[Array, ""]) -> Measurement:
    settings = [(name, rule, factor) for name in OPTIMISERS for rule in RULES for factor in FACTORS]
    moments = {}
    for index, (name, rule, factor) in enumerate(settings):
        known = moments.get((name, RULES[0], 1)) if factor == 1 else None
        moments[name, rule, factor] = known or _moments(
            parameters, name, rule, factor, jax.random.fold_in(key, index)
        )  # at batch size 1 the rules agree
    checks = [check for name, rule in zip(OPTIMISERS, RULES, strict=True) for check in _checks(name, rule, moments)]
    table = np.array([moments[setting] for setting in settings]).reshape(len(OPTIMISERS), len(RULES), len(FACTORS), 4)
    data = xarray.Dataset(
        {
            quantity: (("optimiser", "rule", "factor"), table[..., column])
            for column, quantity in enumerate(("mean", "mean_error", "variance", "variance_error"))
        },
        coords={"optimiser": list(OPTIMISERS), "rule": list(RULES), "factor": list(FACTORS)},
    )
    return Measurement(tuple(checks), data, parameters.runs * parameters.copies)


def _draw(measurement: Measurement, parameters: Scaling) -> "Figure":
    figure, panels = style.new_figure(2, width=4.2)
    for axes, name in zip(panels, OPTIMISERS, strict=True):
        data = measurement.data.sel(optimiser=name)
        first = float(data.variance[0, 0])
        style.theory(axes, FACTORS, np.ones(len(FACTORS)), "no change")
        for rule, colour, marker in zip(RULES, ("blue", "red"), ("o", "s"), strict=True):
            row = data.sel(rule=rule)
            style.points(axes, FACTORS, row.variance / first, row.variance_error / first, rule, colour, marker=marker)
        axes.set(xscale="log", xlabel="batch size k", ylabel="variance / variance at batch size 1", title=name)
        axes.set_xticks(FACTORS, [str(factor) for factor in FACTORS])
        axes.minorticks_off()
    panels[0].legend()
    return figure


CLAIMS = (
    Claim(
        id="square-root-scaling",
        paper="optimisers",
        place="Malladi et al., arXiv 2205.10287: square-root scaling rule",
        statement="Where noise dominates, a batch k times as large changes neither mean nor variance of Adam's "
        "parameters if the step size is multiplied by √k and 1 - b1 and 1 - b2 by k, with 1/k of the steps. SGD needs "
        "the linear rule.",
        equation="Adam: (B, η, 1 - b1, 1 - b2, steps) → (k B, √k η, k (1 - b1), k (1 - b2), steps/k);  SGD: "
        "(B, η, steps) → (k B, k η, steps/k)",
        alternative="The linear rule, step size times k, holds for Adam, and the square-root rule for SGD.",
        scales={"smoke": Scaling(4), "default": Scaling(64), "full": Scaling(512)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
)
