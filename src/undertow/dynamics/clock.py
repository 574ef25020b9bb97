"""The three clocks of a run: steps, time = sum eta, slow_time = sum eta^2, in double precision on the host."""

import math
from collections.abc import Callable
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from undertow._calls import check_function, check_repeats, output_of
from undertow._validate import Number, as_float, finite_number, kind_of, quote

__all__ = ["Schedule", "StepSize", "check_step_size", "clocks", "steps_of_time"]

SPAN = 2**16

Schedule = Callable[[Array], Number]
"""A step size eta(step)."""

StepSize = Number | Schedule
"""Types accepted for a step size."""


def check_step_size(function: str, step_size: StepSize | None) -> float | Schedule:
    """Return a number in double precision and a schedule as it is; raise for other step sizes."""
    if not callable(step_size):
        return as_float(function, "step_size", step_size)
    called, step = "step_size(step)", jnp.zeros((), jnp.int32)
    check_function(function, called, step_size)
    returned = output_of(function, called, step_size, step)
    if getattr(returned, "shape", None) != ():
        what = f"shape {returned.shape}" if hasattr(returned, "shape") else kind_of(returned)
        raise ValueError(
            f"{quote(function, step_size='schedule')}: `{called}` returns {what}; return one number per step."
        )
    check_repeats(function, called, step_size, step)
    return cast("Schedule", step_size)


def steps_of_time(function: str, time: Number, dt: float) -> int:
    """Return the number of steps of length dt that cover `time`, rounded up."""
    finite_number(function, "time", time)
    if dt == 0 or time == 0:
        raise ValueError(f"`{function}(time={time})`: `time` and `step_size` must be above 0 to move at all.")
    return max(1, math.ceil(float(time) / dt - 1e-6))


def clocks(function: str, step_size: float | Schedule, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return time and slow_time after each of the given (increasing) numbers of steps."""
    if not callable(step_size):
        eta = float(step_size)
        return steps * eta, steps * eta**2
    time, slow = np.zeros(len(steps)), np.zeros(len(steps))
    total, total_slow = 0.0, 0.0
    last = int(steps[-1]) if len(steps) else 0
    for begin in range(0, last, SPAN):
        etas = _evaluate(function, step_size, begin, min(SPAN, last - begin))
        inside = (steps > begin) & (steps <= begin + SPAN)
        sums, slow_sums = np.cumsum(etas), np.cumsum(etas**2)
        time[inside] = total + sums[steps[inside] - begin - 1]
        slow[inside] = total_slow + slow_sums[steps[inside] - begin - 1]
        total, total_slow = total + sums[-1], total_slow + slow_sums[-1]
    return time, slow


@eqx.filter_jit
def _step_sizes(schedule: Schedule, begin: Array) -> Array:
    return jnp.asarray(jax.vmap(schedule)(begin + jnp.arange(SPAN, dtype=jnp.int32)))


def _evaluate(function: str, schedule: Callable, begin: int, count: int) -> np.ndarray:
    """Return the `count` step sizes from step `begin`; values of the schedule after the last step are not checked."""
    etas = np.asarray(_step_sizes(schedule, jnp.asarray(begin, jnp.int32)), float)
    etas = etas[:count]
    bad = np.flatnonzero(~(np.isfinite(etas) & (etas >= 0)))
    if bad.size:
        value = etas[bad[0]]
        raise ValueError(
            f"{quote(function, step_size='schedule')}: the schedule gives {value} at step {begin + bad[0]}; "
            "step sizes must be finite and not negative."
        )
    return etas
