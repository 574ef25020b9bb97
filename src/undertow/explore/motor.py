"""The motor: noise in auxiliary dimensions rotates a point on a circle of minimisers, which no potential can."""

import functools
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.explore.instrument import Instrument, Observables, Settings, Slider
from undertow.explore.picture import Axis, Panel, Picture, Row, Series, runs_and_mean
from undertow.manifold.limit import Limit
from undertow.noise.additive import Additive
from undertow.papers.zero_loss.models.curves import motor, motor_angle

__all__ = ["MOTOR", "MotorResult", "compute", "draw"]

SAVES = 40
ANGLES = 8
"""Angles of the mean over one phase; the drift is invariant under rotation by a phase."""


@dataclass(frozen=True)
class MotorResult:
    """The angles of the runs, their points at the end, and the predicted speeds in slow time."""

    slow_time: np.ndarray
    angle: np.ndarray
    """Unwrapped angles of the runs that stayed finite (runs, times)."""
    ends: np.ndarray
    """The first two coordinates at the end (runs, 2)."""
    speed: float
    """The speed with the correction for finite steps."""
    small_step_speed: float
    """The speed in the limit of small steps, k/8."""
    diverged: int


@functools.cache
def _motor(phases: int) -> Additive:
    return motor(phases)


@functools.cache
def _drift(phases: int):
    """Return the function that gives the tangential drift at a few angles, for a step size."""
    limit, angles = Limit(_motor(phases)), 2 * jnp.pi / phases * jnp.arange(ANGLES) / ANGLES

    def at(angle: Array, eta: float) -> Float[Array, ""]:
        point = jnp.zeros(phases + 2).at[0].set(jnp.cos(angle)).at[1].set(jnp.sin(angle))
        drift = limit.drift(point, finite_step=eta)
        return drift[1] * jnp.cos(angle) - drift[0] * jnp.sin(angle)

    return lambda eta: [float(at(angle, eta)) for angle in angles]


def _plane(x: Float[Array, " D"]) -> Float[Array, " 2"]:
    return x[:2]


OBSERVE: Observables = {"angle": motor_angle, "point": _plane}


def compute(settings: Settings) -> MotorResult:
    """Run SGD on the motor, and take the harmonic mean of the predicted speed over a turn."""
    phases, eta, momentum = int(settings["phases"]), float(settings["step_size"]), float(settings["momentum"])
    length = float(settings["slow_time"])
    every = max(1, round(length / eta**2 / SAVES))
    start = jnp.zeros(phases + 2).at[0].set(1.0)
    run = descend(
        _motor(phases), start, step_size=eta * (1 - momentum), momentum=momentum, steps=every * SAVES, every=every,
        seeds=int(settings["seeds"]), key=0, observe=OBSERVE, progress=False,
    )  # fmt: skip
    finite = {name: values[~run.diverged] for name, values in run.observed.items()}
    speed = ANGLES / sum(1 / speed for speed in _drift(phases)(eta))
    return MotorResult(
        run.step * eta**2, np.unwrap(finite["angle"], axis=1), finite["point"][:, -1], speed, phases / 8,
        int(run.diverged.sum()),
    )  # fmt: skip


def draw(result: MotorResult) -> Picture:
    """Draw the points on the circle at the end, and the angle over slow time."""
    time, last, turn = result.slow_time, result.angle[:, -1], np.linspace(0, 2 * np.pi, 73)
    theory = result.speed * time[-1]
    arc = np.linspace(0, theory % (2 * np.pi), 73)
    circle = Panel(
        "The plane at the end of the runs",
        Axis("x", low=-1.5, high=1.5),
        Axis("y", low=-1.5, high=1.5),
        (
            Series("dashed", "minimisers", "grey", np.cos(turn), np.sin(turn)),
            Series("line", "predicted rotation after whole turns", "red", np.cos(arc), np.sin(arc)),
            Series("scatter", "SGD, single runs", "blue", result.ends[:, 0], result.ends[:, 1]),
            Series("target", "predicted end", "red", np.cos([theory]), np.sin([theory])),
        ),
        equal=True,
    )
    angle = Panel(
        "Angle",
        Axis("slow time, steps · η²"),
        Axis("angle in turns"),
        (
            *runs_and_mean("SGD", time, result.angle / (2 * np.pi)),
            Series("line", "theory at this step size", "red", time, result.speed * time / (2 * np.pi)),
            Series("dashed", "limit of small steps, k/8", "purple", time, result.small_step_speed * time / (2 * np.pi)),
        ),
    )
    speeds = last / time[-1]
    error = float(standard_error(speeds)) if len(speeds) > 1 else None
    rows = (
        Row("angular speed, radians per unit of slow time", result.speed, float(speeds.mean()), error),
        Row("the same in the limit of small steps, k/8", result.small_step_speed, None),
    )
    lost = (f"{result.diverged} runs diverged and are left out.",) if result.diverged else ()
    return Picture((circle, angle), rows, lost)


CODE = """\
import jax, jax.numpy as jnp, numpy as np, undertow as ut
from undertow.papers.zero_loss.models.curves import motor, motor_angle

jax.config.update("jax_enable_x64", True)
k, eta, beta = $phases, $step_size, $momentum
every = max(1, round($slow_time / eta**2 / 40))
run = ut.descend(motor(k), jnp.zeros(k + 2).at[0].set(1.0), step_size=eta * (1 - beta), momentum=beta,
                 steps=40 * every, every=every, seeds=$seeds, key=0, observe={"angle": motor_angle})
turned = np.unwrap(run.observed["angle"][~run.diverged], axis=1)[:, -1]
simulation = float(turned.mean() / (run.step[-1] * eta**2))

def speed(angle):
    x = jnp.zeros(k + 2).at[0].set(np.cos(angle)).at[1].set(np.sin(angle))
    drift = ut.Limit(motor(k)).drift(x, finite_step=eta)
    return float(drift[1] * np.cos(angle) - drift[0] * np.sin(angle))

theory = 8 / sum(1 / speed(2 * np.pi / k * i / 8) for i in range(8))
print(f"angular speed: theory {theory:.3g} (small steps: {k / 8:g}), SGD {simulation:.3g}")
"""

MOTOR = Instrument(
    name="motor",
    title="A motor driven by noise",
    summary="The minimisers are a circle. Noise in k auxiliary dimensions, whose strength depends on the point, "
    "rotates the point at the speed k/8 in slow time. No potential can cause such a motion. Larger steps rotate it "
    "faster.",
    theory="theory/zero-loss",
    sliders=(
        Slider("step_size", "step size η", (0.05, 0.07, 0.1, 0.14, 0.2, 0.3), 0.1, (0.05, 0.1, 0.2, 0.3)),
        Slider("momentum", "momentum β", (0.0, 0.5, 0.8, 0.9), 0.0, (0.0, 0.9), programs=(0.5,)),
        Slider("phases", "phases k", (3, 4, 5, 6), 3, (3, 6), programs=(4, 5, 6)),
        Slider("slow_time", "slow time", (4, 8, 16, 32), 16, (4, 16)),
        Slider("seeds", "number of runs", (4, 8, 16, 32, 64, 128), 64, small_programs=(4, 8, 16, 32, 128)),
    ),
    compute=compute,
    draw=draw,
    code=CODE,
)
