"""Isotropic noise on an ellipse and correlated noise on a circle: SGD compared with closed forms in the plane."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.manifold.limit import Limit
from undertow.papers.zero_loss.models.curves import isotropic_ellipse, mixed_circle
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOWS = 24
"""Number of equal windows of time over which x^2 is averaged, for the figure."""


@dataclass(frozen=True)
class Ellipse:
    """SGD with isotropic noise on the ellipse x^2/4 + y^2 = 1."""

    seeds: int
    """Number of independent runs."""
    step_size: float = 0.05
    """Step size of SGD."""
    slow_time: float = 12.0
    """Length of each run in slow time, steps * step_size^2; averages are over the second half."""


@dataclass(frozen=True)
class Circle:
    """SGD with the noise sigma = t + rho n, along and across the unit circle."""

    seeds: int
    """Number of independent runs."""
    rho: float = -0.5
    """Part ρ of the noise across the circle; for |ρ| above a half the runs leave the circle."""
    step_size: float = 0.05
    """Step size of SGD."""
    slow_time: float = 4.0
    """Length of each run in slow time, steps * step_size^2."""
    solutions: int = 400
    """Number of solutions of the limiting diffusion."""


def _measure_ellipse(parameters: Ellipse, key: Key[Array, ""]) -> Measurement:
    steps = round(parameters.slow_time / parameters.step_size**2)
    run = descend(
        isotropic_ellipse(), jnp.array([2.0, 0.0]), step_size=parameters.step_size, steps=steps,
        every=steps // WINDOWS,
        key=key, average={"square": lambda x: x[0] ** 2}, seeds=parameters.seeds, progress=False,
    )  # fmt: skip
    squares = run.observed["square"][~run.diverged, 1:]
    late = squares[:, WINDOWS // 2 :].mean(axis=1)
    error = float(standard_error(late))
    check = Check("E x² in equilibrium", late.mean(), 2.0, error, Within(0.05, 0.15), alternative=2.338)
    windows = {"mean": ("slow_time", squares.mean(axis=0)), "error": ("slow_time", standard_error(squares, axis=0))}
    middles = (run.slow_time[1:] + run.slow_time[:-1]) / 2
    data = xarray.Dataset({"square": ("seed", late)} | windows, coords={"slow_time": middles})
    note = "With -1/2 instead of -1/4 before P ∇ ln |H|_+ it would be 2.338, and 1.680 without that term."
    return Measurement((check,), data, parameters.seeds, int(run.diverged.sum()), note)


def _measure_circle(parameters: Circle, key: Key[Array, ""]) -> Measurement:
    steps = round(parameters.slow_time / parameters.step_size**2)
    run = descend(
        mixed_circle(parameters.rho), jnp.array([1.0, 0.0]), step_size=parameters.step_size, steps=steps,
        every=max(1, round(0.02 / parameters.step_size**2)), key=key,
        observe={"angle": _angle}, seeds=parameters.seeds, progress=False,
    )  # fmt: skip
    angles = np.unwrap(run.observed["angle"][~run.diverged], axis=1)
    turned = angles[:, -1] / parameters.slow_time
    error = float(standard_error(turned))
    half = -parameters.rho / 2
    solved, spread = statistics.mean(_solved(parameters, jax.random.fold_in(key, 1)))
    checks = (
        Check("angular speed of SGD", turned.mean(), -parameters.rho, error, Within(0.03, 0.2), alternative=half),
        Check("angular speed of the limiting diffusion, solved numerically", solved, -parameters.rho, spread,
              Within(0.01, 0.2), alternative=half, samples=parameters.solutions),
    )  # fmt: skip
    data = xarray.Dataset(
        {"drift": ("seed", turned), "angle": ("slow_time", angles.mean(axis=0)),
         "error": ("slow_time", standard_error(angles, axis=0))},
        coords={"slow_time": run.slow_time},
    )  # fmt: skip
    return Measurement(checks, data, parameters.seeds, int(run.diverged.sum()))


def _solved(parameters: Circle, key: Key[Array, ""]) -> np.ndarray:
    """Return the mean angular speed of every solution of the limiting diffusion."""
    path = Limit(mixed_circle(parameters.rho)).solve(
        jnp.array([1.0, 0.0]), slow_time=parameters.slow_time, key=key, seeds=parameters.solutions, num_saves=40,
        steps=400, observe={"angle": _angle},
    )  # fmt: skip
    return np.unwrap(path.observed["angle"], axis=1)[:, -1] / parameters.slow_time


def _angle(x: Array) -> Array:
    return jnp.arctan2(x[1], x[0])


def _draw_ellipse(measurement: Measurement, parameters: Ellipse) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    style.points(axes, data.slow_time, data["mean"], data.error, "SGD, averaged over windows")
    ends = [0, parameters.slow_time]
    style.theory(axes, ends, [2.0, 2.0], "equilibrium with −1/4")
    style.theory(axes, ends, [2.338, 2.338], "with −1/2, as printed", "red")
    style.theory(axes, ends, [1.68, 1.68], "without the term", "green")
    axes.set(xlabel="slow time, steps × step size²", ylabel="mean of x²")
    axes.legend()
    return figure


def _draw_circle(measurement: Measurement, parameters: Circle) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data.isel(slow_time=slice(None, None, 10))
    ends = np.array([0.0, parameters.slow_time])
    style.theory(axes, ends, -parameters.rho * ends, "−ρ t")
    style.theory(axes, ends, -parameters.rho / 2 * ends, "−ρ t/2, mixed part once", "red")
    style.points(axes, data.slow_time, data.angle, data.error, "SGD")
    axes.set(xlabel="slow time t, steps × step size²", ylabel="mean angle, radians")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="isotropic-ellipse",
        paper="zero_loss",
        place="Corollary 5.1",
        statement="SGD with isotropic noise on the ellipse x²/4 + y² = 1, L = g²/2, has E x² = 2 in equilibrium, "
        "which confirms the coefficient -1/4 in simulation.",
        equation="E x² = 2",
        alternative="The coefficient is -1/2, and E x² = 2.338.",
        rests_on=("isotropic-quarter",),
        scales={"smoke": Ellipse(1000), "default": Ellipse(4000), "full": Ellipse(40_000)},
        measure=_measure_ellipse,
        draw=_draw_ellipse,
    ),
    Claim(
        id="mixed-circle",
        paper="zero_loss",
        place="Eq. (10), mixed regularisation",
        statement="The noise σ = t + ρ n, along and across the circle, rotates the point at the speed -ρ, although "
        "noise in either direction alone does not rotate it.",
        equation="d angle/dt = -ρ",
        alternative="The mixed part enters once instead of twice: d angle/dt = -ρ/2.",
        rests_on=("d2phi-signs", "additive-covariance"),
        scales={"smoke": Circle(1000), "default": Circle(4000), "full": Circle(100_000)},
        measure=_measure_circle,
        draw=_draw_circle,
        long=True,
    ),
)
