"""The weak order of the SDE approximation of SGD: the error of an expectation is proportional to the step size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Array, Key, PyTree
from scipy.linalg import expm

from undertow.dynamics.descend import descend
from undertow.dynamics.diffuse import diffuse
from undertow.estimate import standard_error
from undertow.figures import style
from undertow.noise.minibatch import Minibatch
from undertow.problem import Regression
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS = np.array([0.4, 1.0, 1.5])
TARGETS = np.array([1.0, -0.5, 0.8])
STEP_SIZES = (0.2, 0.1, 0.05)
TIME = 0.8
START = 2.0
LANE = 4096


@dataclass(frozen=True)
class WeakOrder:
    """Least squares in one dimension with three samples, one sample per step."""

    seeds: int
    """Number of runs of SGD at each step size; at the largest also a fifth as many of the SDE, 8,192 at least."""
    substeps: int = 16
    """Number of Euler-Maruyama steps per step of SGD."""


def sde_second_moment(step_size: float, noise: float = 1.0) -> float:
    """Return E w(T)^2 of dw = -(a w - b) dt + sqrt(step_size (p w^2 + q w + r)) dW, whose moments obey a linear ODE.

    `noise` multiplies the variance of the noise.
    """
    x, y = INPUTS, TARGETS
    a, b = np.mean(x**2), np.mean(x * y)
    p, q, r = np.var(x**2), -2 * np.cov(x**2, x * y, bias=True)[0, 1], np.var(x * y)
    # d/dt (1, m1, m2) = M (1, m1, m2)
    p, q, r = (noise * step_size * x for x in (p, q, r))
    generator = np.array([[0, 0, 0], [b, -a, 0], [r, 2 * b + q, -2 * a + p]])
    return float((expm(TIME * generator) @ [1.0, START, START**2])[2])


def sgd_second_moment(step_size: float) -> float:
    """Return E w^2 of SGD after TIME/step_size steps, by the exact recursion of its first two moments."""
    x, y = INPUTS, TARGETS
    m1, m2 = START, START**2
    for _ in range(round(TIME / step_size)):
        keep, push = 1 - step_size * x**2, step_size * x * y  # w+ = keep w + push
        m1, m2 = (
            np.mean(keep * m1 + push),
            np.mean(keep**2 * m2 + 2 * keep * push * m1 + push**2),
        )
    return float(m2)


def _measure(parameters: WeakOrder, key: Key[Array, ""]) -> Measurement:
    noise = Minibatch(Regression(lambda w, x: w * x, jnp.asarray(INPUTS), jnp.asarray(TARGETS)), 1)
    start = jnp.asarray(START)
    observe: dict[str, Callable[[PyTree], PyTree]] = {"square": jnp.square}
    moments, errors = [], []
    for eta in STEP_SIZES:
        run = descend(
            noise, start, step_size=eta, steps=round(TIME / eta), seeds=parameters.seeds, key=key, observe=observe,
            lane_width=LANE, progress=False,
        )  # fmt: skip
        moments.append(run.observed["square"][:, -1].mean())
        errors.append(standard_error(run.observed["square"][:, -1], ddof=0))
    sde = np.array([sde_second_moment(eta) for eta in STEP_SIZES])
    gaps, errors = np.abs(np.array(moments) - sde), np.array(errors)
    slope, slope_error = statistics.slope(np.log(STEP_SIZES), np.log(gaps), errors / gaps)
    exact = np.abs(np.array([sgd_second_moment(eta) for eta in STEP_SIZES]) - sde)
    exact_slope, _ = statistics.slope(np.log(STEP_SIZES), np.log(exact), errors / gaps)

    solved = diffuse(
        noise, start, step_size=STEP_SIZES[0], time=TIME, substeps=parameters.substeps,
        seeds=max(2 * LANE, parameters.seeds // 5), key=key, observe=observe, lane_width=LANE, progress=False,
    )  # fmt: skip
    simulated = solved.observed["square"][:, -1]
    sde_error = float(standard_error(simulated, ddof=0))
    # the bias of Euler-Maruyama is of order dt = step_size/substeps
    tolerance = 2 * STEP_SIZES[0] / parameters.substeps * sde[0]
    checks = (
        Check("weak order of SGD against its SDE", slope, 1.0, slope_error, Within(0.1, 0.6), alternative=0.5),
        Check("weak order of SGD against its SDE, from exact moments", exact_slope, 1.0, 0.0, Within(0.1, 0.6),
              alternative=0.5),
        Check("E w² of the simulated SDE", simulated.mean(), sde[0], sde_error, Within(tolerance, 0.1 * sde[0]),
              alternative=sde_second_moment(STEP_SIZES[0], 2.0), samples=len(simulated)),
        *(
            Check(f"E w² of SGD at step size {eta}", m, sgd_second_moment(eta), e, Within(0.0, 0.1), alternative=value)
            for eta, m, e, value in zip(STEP_SIZES, moments, errors, sde, strict=True)
        ),
    )  # fmt: skip
    data = xarray.Dataset(
        {"gap": (("step_size",), gaps), "error": (("step_size",), errors), "exact": (("step_size",), exact)},
        coords={"step_size": np.array(STEP_SIZES)},
        attrs={"slope": slope},
    )
    return Measurement(checks, data, seeds=parameters.seeds)


def _draw(measurement: Measurement, parameters: WeakOrder) -> "Figure":
    figure, (axes,) = style.new_figure()
    data = measurement.data
    eta = data.step_size.values
    style.theory(axes, eta, data.exact, "exact moments")
    style.theory(axes, eta, float(data.exact[-1]) * eta / eta[-1], "slope 1", "green")
    style.points(axes, eta, data.gap, data.error, f"simulation, slope {data.attrs['slope']:.2f}")
    axes.set(xscale="log", yscale="log", xlabel="step size", ylabel="|E w² of SGD − E w² of the SDE|")
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="sde-weak-order",
        paper="noise_equilibrium",
        place="Eq. (1)",
        statement="SGD follows the SDE dθ = -∇L dt + √(2σ² Σ) dW with σ² = η/(2S) to weak order one: expectations "
        "differ by O(η).",
        equation="|E φ(SGD at time T) - E φ(SDE at time T)| = O(η)",
        alternative="SGD follows its SDE only to order one half, as a single path does; and σ² is η/S.",
        scales={"smoke": WeakOrder(4 * LANE), "default": WeakOrder(1_000_000), "full": WeakOrder(10_000_000)},
        measure=_measure,
        draw=_draw,
        accelerated=True,
        long=True,
    ),
)
