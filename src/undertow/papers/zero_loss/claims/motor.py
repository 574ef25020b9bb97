"""The k-phase motor: its angular speed, the finite-step correction, and momentum."""

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
from undertow.papers._lanes import lanes
from undertow.papers.zero_loss.models.curves import motor, motor_angle
from undertow.verification.claim import Claim, Measurement, Scale
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHASES = 3
SPEED = PHASES / 8
MOMENTA = (0.5, 0.9)
LANE = 256
"""Largest number of runs that advance together on a CPU."""


@dataclass(frozen=True)
class Turning:
    """SGD on the three-phase motor."""

    seeds: int
    """Number of runs at each step size."""
    slow_time: float = 16.0
    """Length of each run in slow time, steps * step_size^2."""
    largest_step: float = 0.1
    """Largest step size; two more are a half and a quarter of it."""


def _at(angle: float) -> Array:
    """Return the point of the circle at an angle."""
    return jax.device_put(np.array([np.cos(angle), np.sin(angle), *np.zeros(PHASES)], jnp.result_type(float)))


def _speeds(
    parameters: Turning, key: Key[Array, ""], momentum: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return step sizes (effective ones under momentum), mean speeds in units of k/8, and standard errors."""
    etas = parameters.largest_step / np.array([1.0, 2.0, 4.0])
    means, errors = [], []
    for index, eta in enumerate(etas):
        run = descend(
            motor(PHASES), _at(0.0), step_size=eta * (1 - momentum), momentum=momentum,
            steps=round(parameters.slow_time / eta**2), every=max(1, round(0.25 / eta**2)),
            key=jax.random.fold_in(key, index), observe={"angle": motor_angle}, seeds=parameters.seeds,
            lane_width=lanes(min(parameters.seeds, LANE)), progress=False,
        )  # fmt: skip
        turned = np.unwrap(run.observed["angle"], axis=1)[:, -1] / parameters.slow_time / SPEED
        means.append(turned.mean())
        errors.append(standard_error(turned))
    return etas, np.array(means), np.array(errors)


def _predicted(etas: np.ndarray, momentum: float = 0.0) -> np.ndarray:
    """Return the mean speed with the finite-step correction, in units of k/8.

    The corrected speed depends on the angle, so the mean speed of a turn is the harmonic mean. The noise of the motor
    is independent in directions that are eigenvectors of H. There momentum reduces the correction at an effective step
    size by the factor (1 - momentum)/(1 + momentum): X = S / (2 h - eta h^2 (1 - momentum)/(1 + momentum)). Terms of
    second order in the step size, which grow with momentum, are left out.
    """
    limit = Limit(motor(PHASES))
    etas = etas * (1 - momentum) / (1 + momentum)
    angles = np.linspace(0, 2 * np.pi / PHASES, 8, endpoint=False)  # invariant under rotation by a phase

    def speed(angle: float, eta: float) -> float:
        drift = np.asarray(limit.drift(_at(angle), finite_step=eta))
        return float(drift[1] * np.cos(angle) - drift[0] * np.sin(angle)) / SPEED

    return np.array([1 / np.mean([1 / speed(angle, eta) for angle in angles]) for eta in etas])


def _richardson(means: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Return the limit of small steps from the two largest: 2 s(eta/2) - s(eta), which cancels the first order."""
    return float(2 * means[1] - means[0]), float(np.hypot(2 * errors[1], errors[0]))


def _data(etas: np.ndarray, means: np.ndarray, errors: np.ndarray) -> xarray.Dataset:
    return xarray.Dataset({"speed": ("step_size", means), "error": ("step_size", errors)}, coords={"step_size": etas})


def _measure_speed(parameters: Turning, key: Key[Array, ""]) -> Measurement:
    etas, means, errors = _speeds(parameters, key)
    theory = _predicted(etas)
    value, error = _richardson(means, errors)
    checks = (
        Check("angular speed / ((D - 2)/8), extrapolated to small steps", value, 1.0, error, Within(0.03, 0.5),
              printed=4.0, alternative=4.0),
        *(
            # the equation neglects the variation of curvature and noise over the width of the fluctuations, which is of
            # first order too, with a small coefficient: the tolerance is a tenth of the step size
            Check(f"angular speed / ((D - 2)/8) at step size {eta:g}", m, t, e, Within(0.1 * eta, 0.1),
                  alternative=1.0 if eta == etas[0] else 4.0)
            for eta, m, t, e in zip(etas, means, theory, errors, strict=True)
        ),
    )  # fmt: skip
    return Measurement(checks, _data(etas, means, errors), parameters.seeds)


def _measure_momentum(parameters: Turning, key: Key[Array, ""]) -> Measurement:
    checks, runs = [], []
    for beta in MOMENTA:
        etas, means, errors = _speeds(parameters, key, beta)
        runs.append(_data(etas, means, errors))
        value, error = _richardson(means, errors)
        checks.append(
            Check(
                f"angular speed / ((D - 2)/8) at momentum {beta:g}, extrapolated",
                value,
                1.0,
                error,
                Within(0.05, 0.5),
                alternative=1 - beta,
            )
        )
    data = xarray.concat(runs, xarray.DataArray(list(MOMENTA), dims="momentum", name="momentum"))
    return Measurement(tuple(checks), data, parameters.seeds)


def _draw_speed(measurement: Measurement, parameters: Turning) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    fine = np.linspace(0, float(data.step_size.max()) * 1.05, 8)
    style.theory(axes, fine, np.concatenate([[1.0], _predicted(fine[1:])]), "limit with finite-step correction")
    style.points(axes, data.step_size, data.speed, data.error, "SGD")
    axes.axhline(1.0, color=style.COLOURS["green"], lw=1, ls="--", label="limit of small steps, (D − 2)/8")
    axes.set(xlabel="step size", ylabel="angular speed / ((D − 2)/8)")
    axes.legend()
    return figure


def _draw_momentum(measurement: Measurement, parameters: Turning) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    fine = np.linspace(0, float(data.step_size.max()) * 1.05, 8)
    # beside each other, so that no interval hides another one
    shift = 0.01 * float(data.step_size.max())
    for beta, colour, side in zip(MOMENTA, ("blue", "red"), (-1, 1), strict=True):
        theory = np.concatenate([[1.0], _predicted(fine[1:], beta)])
        style.theory(axes, fine, theory, f"β = {beta:g}, limit with finite-step correction", colour)
        run = data.sel(momentum=beta)
        style.points(axes, run.step_size + side * shift, run.speed, run.error, f"β = {beta:g}, SGD", colour)
    axes.set(xlabel="effective step size η/(1 − β)", ylabel="angular speed / ((D − 2)/8)")
    axes.legend()
    return figure


SCALES: dict[Scale, Turning] = {"smoke": Turning(128), "default": Turning(2000), "full": Turning(20_000)}

CLAIMS = (
    Claim(
        id="motor-speed",
        paper="zero_loss",
        place="Lemma C.8, and Theorem 4.6 at finite step size",
        statement="Noise in k = D - 2 auxiliary dimensions rotates the point on the circle at the constant speed (D - "
        "2)/8; the paper prints (D - 2)/2. No potential can cause such a motion. At a finite step size the rotation "
        "is faster, as HX + XH - η HXH = Σ predicts in place of the Lyapunov equation.",
        equation="d angle/dt = (D - 2)/8,  X_ij = S_ij / (h_i + h_j - η h_i h_j)",
        alternative="The speed is (D - 2)/2, as printed, and a finite step size does not change it.",
        rests_on=("d2phi-signs",),
        scales=SCALES,
        measure=_measure_speed,
        draw=_draw_speed,
    ),
    Claim(
        id="heavy-ball",
        paper="zero_loss",
        place="Theorem 4.6, with momentum",
        statement="SGD with heavy-ball momentum has the same limit, with the step size η/(1 - β) in the slow time.",
        equation="K = T (1 - β)²/η² steps reach slow time T",
        alternative="Momentum increases the effective step but not the noise: slow time advances by η²/(1 - β) per "
        "step.",
        rests_on=("motor-speed",),
        scales=SCALES | {"smoke": Turning(24)},
        measure=_measure_momentum,
        draw=_draw_momentum,
    ),
)
