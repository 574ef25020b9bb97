"""The weak order of the SDE in (theta, v) for Adam without momentum."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.figures import style
from undertow.optimisers import Adam
from undertow.papers._lanes import lanes
from undertow.papers.optimisers.models.copies import Coordinate, Copies, CoupledDiffusion, wave
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOCK_STEPS = 2.0 ** -np.arange(3, 6)
"""Values of η², the step of the SDE's clock."""
MOMENTS = {"E w": lambda w: w, "E w²": np.square}
START = 1.0
LANE = 16


@dataclass(frozen=True)
class AdamOrder:
    """Adam without momentum on one parameter, with gradient noise of size 1/η, and its SDE with the same noise."""

    runs: int
    """Number of runs at each step size."""
    copies: int = 2048
    """Number of independent copies of the parameter in a run."""
    substeps: int = 4
    """Number of Euler-Maruyama steps per step of Adam."""
    slow_time: float = 1.0
    """Length of each run in slow time, steps * step_size^2."""
    memory: float = 0.5
    """The number c in 1 - b2 = c η²."""


def _ends(parameters: AdamOrder, clock_step: float, key: Key[Array, ""]) -> list[np.ndarray]:
    """Return the last params of Adam and of its SDE, driven by the same normals."""
    p = parameters
    noise = Copies(Coordinate(wave(), clock_step**-0.5), p.substeps)
    start = jnp.full(p.copies, START)
    adam = Adam(b1=0.0, b2=1 - p.memory * clock_step, eps=0.0, bias_correction=False)
    state = {"m": jnp.zeros_like(start), "v": noise.second_moment(start)}
    ends = []
    for optimiser, initial in ((adam, state), (CoupledDiffusion(noise.noise, adam, noise.parts), {"v": state["v"]})):
        run = descend(
            noise, start, step_size=clock_step**0.5, steps=round(p.slow_time / clock_step), seeds=p.runs, key=key,
            optimiser=optimiser, optimiser_state=initial, lane_width=lanes(LANE), progress=False,
        )  # fmt: skip
        ends.append(np.ravel(run.params))
    return ends


def _measure(parameters: AdamOrder, key: Key[Array, ""]) -> Measurement:
    ends = [_ends(parameters, clock_step, key) for clock_step in CLOCK_STEPS]
    checks, gaps, errors = [], [], []
    for name, moment in MOMENTS.items():
        pairs = [statistics.mean(moment(adam) - moment(sde)) for adam, sde in ends]
        gap, error = np.abs([mean for mean, _ in pairs]), np.array([error for _, error in pairs])
        order, uncertainty = statistics.slope(np.log(CLOCK_STEPS), np.log(gap), error / gap)
        checks.append(
            Check(f"order in η² of the error of {name}", order, 1.0, uncertainty, Within(0.15, 0.4), alternative=0.5)
        )
        gaps.append(gap)
        errors.append(error)
    data = xarray.Dataset(
        {"gap": (("moment", "clock_step"), np.stack(gaps)), "error": (("moment", "clock_step"), np.stack(errors))},
        coords={"moment": list(MOMENTS), "clock_step": CLOCK_STEPS},
    )
    return Measurement(tuple(checks), data, parameters.runs * parameters.copies)


def _draw(measurement: Measurement, parameters: AdamOrder) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    steps = data.clock_step.values
    for name, colour, marker in zip(MOMENTS, ("blue", "red"), ("o", "s"), strict=True):
        row = data.sel(moment=name)
        style.points(axes, steps, row.gap, row.error, f"error of {name}", colour, marker=marker)
    first = float(data.gap[0, 0])
    style.theory(axes, steps, first * steps / steps[0], "proportional to η²")
    style.theory(axes, steps, first * (steps / steps[0]) ** 0.5, "proportional to η", "green")
    axes.set(xscale="log", yscale="log", xlabel="η², the step of the clock", ylabel="|Adam − SDE|")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="adam-weak-order",
        paper="optimisers",
        place="Malladi et al., arXiv 2205.10287: SDE of RMSProp and Adam",
        statement="Adam without momentum follows an SDE in (θ, v) to weak order one in the step η² of its clock. The "
        "gradient noise is of size 1/η and 1 - b2 of size η², so that η² per step is the variance of the noise in θ.",
        equation="dθ = -S ∇L dt + √η S Σ^½ dW,  dv = ((1 - b2)/η) (diag(Σ + ∇L ∇Lᵀ) - v) dt:  |E φ(Adam) - E φ(SDE)| = "
        "O(η²) at a fixed slow time η² steps",
        alternative="Expectations differ by O(η), half the order; with v fixed in the SDE they differ by O(1).",
        scales={"smoke": AdamOrder(96), "default": AdamOrder(512), "full": AdamOrder(4096)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
    ),
)
