"""The controller sequence in the proof that the spurious part stays small: a moment and an event as corrected."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Key

from undertow.figures import style
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Below, Check, Within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POWER = 2 / 3
"""Power of the products in Lemma 7."""
FOLLOWED = 4
"""Number of steps over which the mean of that power is measured."""


@dataclass(frozen=True)
class Controller:
    """The controller sequence q of Definition 4 with L = alpha, one direction, two-point law mean ± M."""

    runs: int
    """Number of independent sequences."""
    moments: int
    """Number of products drawn for the moment of Lemma 7."""
    mean: float = 1.0
    """Mean of the spurious signal."""
    spread: float = 21.0
    """Spread M, large enough for the supermartingale of Lemma 7."""
    step_size: float = 0.05
    """Step size η."""
    steps: int = 100
    """Number of steps T2."""
    violation: float = 1e-3
    """Probability p; the level is p^-1.5 L."""


def _factors(parameters: Controller, sizes: np.ndarray) -> np.ndarray:
    """Return the factor by which a step multiplies the controller (Definitions 4 and 5)."""
    return 1 + parameters.step_size * sizes + 2 * parameters.step_size


def _crossings(parameters: Controller) -> list[float]:
    """Return the probability that the controller has reached its level after each step, exactly by a finite chain."""
    p = parameters
    down, up = (1 + p.step_size * (p.mean + sign * p.spread) + 2 * p.step_size for sign in (-1, 1))
    states, over, course = {(0, 0): 1.0}, 0.0, []
    for _ in range(p.steps):
        after: dict[tuple[int, int], float] = {}
        for (ups, downs), weight in states.items():
            for state in ((ups + 1, downs), (ups, downs + 1)):
                value = up ** state[0] * down ** state[1]
                if value >= p.violation**-1.5:
                    over += weight / 2
                else:
                    state = state if value > 1 else (0, 0)
                    after[state] = after.get(state, 0.0) + weight / 2
        states = after
        course.append(over)
    return course


def _measure_controller(parameters: Controller, key: Key[Array, ""]) -> Measurement:
    p, rng = parameters, np.random.default_rng(np.asarray(jax.random.key_data(key)))
    values = p.mean + p.spread * np.array([-1.0, 1.0])
    level = p.violation**-1.5
    q = np.ones(p.runs)  # over L = alpha
    under, over, course = q <= level, q >= level, []
    for _ in range(p.steps):
        q = np.where(over, q, np.maximum(q * _factors(p, rng.choice(values, p.runs)), 1.0))
        under |= q <= level
        over |= q >= level
        course.append(over.mean())
    bound = p.steps * p.violation
    printed, right = statistics.share(under), statistics.share(over)
    products = np.cumprod(_factors(p, rng.choice(values, (FOLLOWED, p.moments))), axis=0)
    moments = [statistics.mean(product**POWER) for product in products]  # of X_{k,k+j}/X_{k,k}
    moment, exact = moments[-1], _crossings(p)
    eta, after = p.step_size, lambda factors, power: float((factors**power).mean() ** FOLLOWED)
    predicted, bracket = after(1 + eta * values + 2 * eta, POWER), after(1 + eta * (values + 2 * eta), POWER)
    whole = after(1 + eta * values + 2 * eta, 1.0)
    checks = (
        Check(
            f"(42): E[X_{{t+{FOLLOWED}}}^(2/3)]/X_t^(2/3)", moment[0], predicted, moment[1], Within(1e-9, 0.1),
            printed=bracket, alternative=bracket, samples=p.moments,
        ),
        Check(f"Lemma 7: E[X_{{t+{FOLLOWED}}}^(2/3)]/X_t^(2/3) is below 1", moment[0], predicted, moment[1],
              Below(1.0), alternative=whole, samples=p.moments),
        Check(
            "(49): probability of the printed event, q ≤ level", printed[0], 1.0, printed[1], Within(0.0, 0.1),
            printed=bound, alternative=bound,
        ),
        Check(
            "(49): probability of q ≥ level, exact by a finite chain", right[0], exact[-1], right[1],
            Within(0.0, 0.02), alternative=bound,
        ),
        Check("(49): probability of q ≥ level, bounded by T2 p", right[0], bound, right[1], Below(bound),
              alternative=1.0),
    )  # fmt: skip
    shown = slice(p.steps // 10 - 1, None, p.steps // 10)
    data = xarray.Dataset(
        {
            "share": ("step", course[shown]),
            "exact": ("step", exact[shown]),
            "moment": (("kind", "product"), np.array(moments).T),
        },
        coords={"step": np.arange(1, p.steps + 1)[shown]},
        attrs={"printed": bracket},
    )
    return Measurement(checks, data, p.runs)


def _draw_controller(measurement: Measurement, parameters: Controller) -> "Figure":
    figure, (left, right) = style.new_figure(2, width=4.2)
    data, first = measurement.data, measurement.checks[0]
    counts = np.arange(FOLLOWED + 1)
    style.theory(left, counts, first.predicted ** (counts / FOLLOWED), "E(1 + ηS + 2η)^(2/3) per step")
    style.theory(left, counts, data.attrs["printed"] ** (counts / FOLLOWED), "E(1 + η(S + 2η))^(2/3), in print", "red")
    style.points(left, counts[1:], *data.moment.values, "products")
    left.set(xlabel="steps j", ylabel="E[X_{t+j}^(2/3)]/X_t^(2/3)", xticks=counts)
    left.legend()
    steps = data.step.values
    style.theory(right, steps, data.exact, "exact, by a finite chain")
    style.theory(right, steps, parameters.violation * steps, "bound p × steps", "green")
    error = np.sqrt(data.exact * (1 - data.exact) / parameters.runs)
    style.points(right, steps, data.share, error, "sequences")
    right.set(xlabel="steps", ylabel="share with q ≥ level so far")
    right.legend()
    return figure


CLAIMS = (
    Claim(
        id="controller-event",
        paper="heterogeneity",
        place="Eq. (42) and (49)",
        statement="The proof that the spurious part stays small uses that a step multiplies X^(2/3) by a mean below "
        "1, so that the controller rarely crosses its level. That mean is E(1 + η S + 2η)^(2/3), not E(1 + η (S + "
        "2η))^(2/3). The event of probability at most T2 p is q ≥ level; the printed event q ≤ level is certain, "
        "because every run starts below the level.",
        equation="E[X_{t+1}^(2/3)] = E[(1 + η S + 2η)^(2/3)] X_t^(2/3),  P(q ≥ p^-1.5 r2^1.5 L at some t ≤ T2) ≤ T2 p",
        alternative="Both lines hold as printed: the mean is E(1 + η (S + 2η))^(2/3), and the controller is below the "
        "level with probability T2 p at most.",
        scales={
            "smoke": Controller(20_000, 200_000),
            "default": Controller(200_000, 1_000_000),
            "full": Controller(1_000_000, 10_000_000),
        },
        measure=_measure_controller,
        draw=_draw_controller,
    ),
)
