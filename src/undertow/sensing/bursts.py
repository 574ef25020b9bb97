"""Bursts: the return of a filtered signal after the true signal is learnt, re-seeded by measurement noise.

Once U contains the invariant signal, noise rotates U slightly towards a spurious direction at every step. The rotated
part is multiplied by 1 + eta (s - 1) per step, because the true signal in the same column damps it. It is a Kesten
process, with power-law tails whose exponent solves E|1 + eta (s - 1)|^kappa = 1.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.dynamics.traced import run_traced
from undertow.estimate import Estimate
from undertow.sensing.growth import PerDirection, tail_exponent
from undertow.sensing.laws import LawLike, as_law
from undertow.sensing.matrix_sensing import MatrixSensing

__all__ = ["burst_exponent", "burst_probability"]

BLOCK = 32
"""The number of steps whose randomness is drawn at once."""


def burst_exponent(law: LawLike, step_size: Number, *, signal: float = 1.0) -> PerDirection:
    """Return kappa with E|1 + step_size (s - signal)|^kappa = 1: bursts q of a filtered signal have tails q^-kappa.

    `signal` is the eigenvalue of the invariant signal. If the mean of the law is equal to it, kappa is 1 for any spread
    for which no factor 1 + step_size (s - signal) is negative.

    >>> from undertow.sensing.bursts import burst_exponent
    >>> from undertow.sensing.laws import two_point
    >>> print(f"{burst_exponent(two_point(0.5, 8.0), 0.05):.2f}")
    1.30
    """
    validate.finite_number("burst_exponent", "step_size", step_size)
    validate.finite_number("burst_exponent", "signal", signal)
    return tail_exponent(as_law("burst_exponent", law).shifted(-signal), step_size)


@eqx.filter_jit
def _tops(sensing: MatrixSensing, keys: Array, eta: Array, alpha: Array, steps: Array) -> Array:
    """Return the largest spurious signal of each run from the invariant solution with columns of size alpha added."""
    learnt, small = sensing.truth * jnp.sqrt(sensing.spectrum)[None], alpha * sensing.problem.directions
    start = jnp.concatenate([learnt, small.astype(learnt.dtype)], axis=1)

    def leaked(u: Array) -> Array:
        return jnp.max(jnp.sum((u.T @ sensing.problem.directions) ** 2, axis=0))

    def run(key: Array) -> Array:
        end = run_traced(sensing, start, step_size=eta, steps=steps, key=key, maximum={"leaked": leaked}, block=BLOCK)
        return end.maximum["leaked"]

    return jax.vmap(run)(keys)


def burst_probability(
    sensing: MatrixSensing,
    step_size: Number,
    *,
    steps: int,
    level: float = 0.5,
    alpha: float = 1e-3,
    key: KeyLike = 0,
    runs: int = 256,
) -> Estimate:
    """Return the probability that a spurious signal exceeds `level` within `steps` after the true one is learnt.

    The estimate is a simulation with the exact law, from the invariant solution and one column of size `alpha` (the
    remainder of the start) for each spurious direction. The signal returns by noise or by growth. A run that diverges
    counts as a burst. The standard error is positive even if none or all of the runs burst; `interval` is the exact
    binomial interval.

    >>> import undertow as ut
    >>> from undertow.sensing.bursts import burst_probability
    >>> from undertow.sensing.laws import two_point
    >>> sensing = ut.MatrixSensing(10, m=1600, law=two_point(1.0, 8.0))
    >>> chance = burst_probability(sensing, 0.05, steps=2000, runs=64)
    >>> print(float(chance.value) > 0.5)
    True
    """
    if not isinstance(sensing, MatrixSensing):
        raise TypeError("`burst_probability(sensing, ...)`: give a `MatrixSensing`.")
    validate.finite_number("burst_probability", "step_size", step_size)
    steps = validate.positive_integer("burst_probability", "steps", steps)
    runs = validate.positive_integer("burst_probability", "runs", runs)
    if float(jnp.min(sensing.spectrum)) <= 0:
        raise ValueError(
            "`burst_probability`: the invariant signal has an eigenvalue of at most 0, which UU' cannot represent; "
            "give a positive `spectrum`."
        )
    keys = jax.random.split(validate.as_key("burst_probability", key), runs)
    numbers = (jnp.asarray(x, jnp.result_type(float)) for x in (step_size, alpha))
    tops = np.asarray(_tops(sensing, keys, *numbers, jnp.asarray(steps)))
    return Estimate.share(~(tops <= level))
