"""The two phases of SGD: along gradient flow to the manifold in 1/eta steps, then along it in 1/eta^2 steps."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.isotropic import Isotropic
from undertow.papers._lanes import lanes
from undertow.papers.zero_loss.models.curves import circle
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEP_SIZES = (0.01, 0.0025)
FIRST_TIME = 1.5
"""Time (steps * step_size) of the observation in the first phase, before the point has reached the circle."""


@dataclass(frozen=True)
class Phases:
    """Isotropic SGD on the unit circle from outside it, at a step size and at a quarter of it."""

    seeds: int
    """Number of runs at each step size."""
    slow_time: float = 0.5
    """Slow time (steps * step_size^2) of the observation in the second phase."""


def _radius() -> float:
    """Return the radius of gradient flow from radius 2, on which 1 - 1/r^2 decays like exp(-t)."""
    gap = (1 - 1 / 4) * np.exp(-FIRST_TIME)
    return float(1 / np.sqrt(1 - gap))


def _itself(x: Array) -> Array:
    return x


def _measure(parameters: Phases, key: Key[Array, ""]) -> Measurement:
    start, noise = jnp.array([2.0, 0.0], jnp.float32), Isotropic(circle(), 1.0)
    along, across, turned, turned_error = [], [], [], []
    observe: dict[str, Callable[[PyTree], PyTree]] = {"x": _itself}
    for index, eta in enumerate(STEP_SIZES):
        simulate = functools.partial(
            descend, noise, start, step_size=eta, key=jax.random.fold_in(key, index), observe=observe,
            seeds=parameters.seeds, progress=False, lane_width=lanes(128),
        )  # fmt: skip
        first = simulate(steps=round(FIRST_TIME / eta)).observed["x"][:, -1]
        second = simulate(steps=round(parameters.slow_time / eta**2)).observed["x"][:, -1]
        along.append(((first - np.array([_radius(), 0.0])) ** 2).sum(1))
        radius = np.linalg.norm(second, axis=1)
        across.append((radius - 1) ** 2)
        turned.append(float((second[:, 0] / radius).mean()))
        turned_error.append(float(standard_error(second[:, 0] / radius, ddof=0)))
    checks = (
        _ratio("phase 1: mean squared distance to gradient flow at η / that at η/4", along),
        _ratio("phase 2: mean squared distance to the manifold at η / that at η/4", across),
        *(
            # Brownian motion on the circle; the first phase shifts its time by O(eta)
            Check(f"phase 2: E cos(angle) at step size {eta:g}", t, float(np.exp(-parameters.slow_time / 2)), e,
                  Within(3 * eta, 0.1), alternative=float(np.exp(-parameters.slow_time)))
            for eta, t, e in zip(STEP_SIZES, turned, turned_error, strict=True)
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {"along": (("step", "seed"), np.array(along)), "across": (("step", "seed"), np.array(across))}
    )
    return Measurement(checks, data, parameters.seeds)


def _ratio(what: str, squares: list[np.ndarray]) -> Check:
    means = [float(s.mean()) for s in squares]
    relative = [standard_error(s, ddof=0) / s.mean() for s in squares]
    value = means[0] / means[1]
    return Check(what, value, 4.0, float(value * np.hypot(*relative)), Within(0.3, 1.5), alternative=2.0)


def _draw(measurement: Measurement, parameters: Phases) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.4)
    kinds = {"along": ("to gradient flow, phase 1", "blue", "o"), "across": ("to the manifold, phase 2", "green", "s")}
    fine = np.array([0.8 * min(STEP_SIZES), 1.25 * max(STEP_SIZES)])
    for name, (label, colour, marker) in kinds.items():
        squares = measurement.data[name].values
        means = squares.mean(axis=1)
        style.theory(left, fine, means[-1] * fine / STEP_SIZES[-1], "", colour)
        style.points(left, STEP_SIZES, means, standard_error(squares, axis=1), label, colour, marker)
    left.set(xlabel="step size η", ylabel="mean squared distance", xscale="log", yscale="log",
             title="lines: proportional to η, through the left points")  # fmt: skip
    left.legend()
    turned = measurement.checks[2:]
    style.theory(right, fine, [turned[0].predicted] * 2, "Brownian motion on the circle")
    style.theory(right, fine, [turned[0].alternative] * 2, "twice as fast", "red")
    style.points(right, STEP_SIZES, [c.measured for c in turned], [c.uncertainty for c in turned], "SGD, phase 2")
    right.set(xlabel="step size η", ylabel="mean of cos(angle)", xscale="log",
              title=f"slow time {parameters.slow_time:g}")  # fmt: skip
    right.legend()
    return figure


CLAIMS = (
    Claim(
        id="two-phases",
        paper="zero_loss",
        place="Remark B.10",
        statement="SGD approaches the manifold along gradient flow in about 1/η steps, at a distance of order √η. It "
        "then stays within order √η of the manifold and moves along it in about 1/η² steps.",
        equation="|x(t/η) - flow(t)|² = O(η),  dist(x(t/η²), Γ)² = O(η)",
        alternative="The squared distances fall only like √η, and the motion along the circle is twice as fast.",
        scales={"smoke": Phases(1600, slow_time=0.25), "default": Phases(4000), "full": Phases(40_000)},
        measure=_measure,
        draw=_draw,
    ),
)
