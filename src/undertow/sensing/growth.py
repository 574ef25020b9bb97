"""Growth of a small component with one environment per step: q <- q (1 + eta s), s of a given law.

The logarithm is a random walk, so the typical size grows like exp(Lambda t) with the Lyapunov exponent
Lambda = E log|1 + eta s|, for any size of the mean. If Lambda is negative the component typically decays; if it is
re-seeded, it has bursts with a power-law tail whose exponent is the other root of E|1 + eta s|^kappa = 1.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from undertow import _validate as validate
from undertow._calls import check_function, checked_call, output_of
from undertow._validate import KeyLike, Number
from undertow.estimate import Estimate
from undertow.sensing.laws import AbstractLaw, LawLike, Numbers, as_law

__all__ = ["lyapunov", "paper_window", "phase_diagram", "scalar_map", "tail_exponent", "transition_spread"]

Sampler = Callable[[Key[Array, ""], int], Array]

PerDirection = Any
"""A float for a law of one direction, an array with one number per direction otherwise."""


@overload
def lyapunov(
    law: LawLike, step_size: Number, *, key: KeyLike | None = None, samples: int = 100_000
) -> PerDirection: ...
@overload
def lyapunov(law: Sampler, step_size: Number, *, key: KeyLike | None = None, samples: int = 100_000) -> Estimate: ...
@checked_call("lyapunov")
def lyapunov(
    law: LawLike | Sampler, step_size: Number, *, key: KeyLike | None = None, samples: int = 100_000
) -> PerDirection | Estimate:
    """Return E log|1 + step_size s|, the typical growth per step of a small component, one number per direction.

    The result is exact to rounding, also if the law has a density at s = -1/step_size. For a function draw(key, count)
    it is an `Estimate` from `samples` draws with `key`, with its standard error.

    >>> import undertow as ut
    >>> from undertow.sensing.laws import two_point
    >>> print(f"{ut.lyapunov(two_point(1.0, 8.0), 0.05):.4f}", f"{ut.lyapunov(two_point(1.0, 3.0), 0.05):.4f}")
    -0.0296 0.0385
    """
    validate.finite_number("lyapunov", "step_size", step_size)
    eta = float(step_size)
    key = validate.as_key("lyapunov", 0 if key is None else key)
    samples = validate.positive_integer("lyapunov", "samples", samples, least=2)
    if _is_sampler(law):
        check_function("lyapunov", "law(key, count)", law)
        shape = getattr(output_of("lyapunov", "law(key, count)", lambda key: law(key, samples), key), "shape", None)
        if not shape or shape[0] != samples:
            raise ValueError(
                f"`lyapunov`: `law(key, count)` returns shape {shape} for count = {samples}; return one number for "
                "each draw."
            )
        drawn = law(key, samples)
        return Estimate.of(jnp.log(jnp.abs(1 + eta * drawn)))
    return _one_or_all(as_law("lyapunov", law).mean_log(eta))


def _is_sampler(law: LawLike | Sampler) -> TypeGuard[Sampler]:
    return not isinstance(law, AbstractLaw | type) and callable(law)


def _one_or_all(values: Float[np.ndarray, " k"]) -> PerDirection:
    """Return a number if the law has one direction, the array otherwise."""
    return float(values[0]) if len(values) == 1 else values


@checked_call("tail_exponent")
def tail_exponent(law: LawLike, step_size: Number) -> PerDirection:
    """Return kappa > 0 with E|1 + step_size s|^kappa = 1: bursts of a re-seeded component have tails q^-kappa (Kesten).

    kappa is zero if the component grows (Lambda >= 0), and infinite if it shrinks at every step.

    >>> import undertow as ut
    >>> from undertow.sensing.laws import two_point
    >>> print(f"{ut.tail_exponent(two_point(1.0, 8.0), 0.05):.3f}")
    0.369
    """
    from scipy.optimize import brentq

    validate.finite_number("tail_exponent", "step_size", step_size)
    law, eta = as_law("tail_exponent", law), float(step_size)
    largest = np.max(np.abs(1 + eta * np.stack(law.support())), axis=0) if eta else np.ones(law.size)
    exponents = np.full(law.size, math.inf)
    for j, typical in enumerate(law.mean_log(eta)):
        if typical >= 0:
            exponents[j] = 0.0
        elif largest[j] > 1:
            one = law.component(j)
            # log E|1 + eta s|^k is convex and 0 at k = 0: divided by k it increases from E log|1 + eta s|
            least = max(typical, -1.0)  # finite for brentq, which only needs the sign here
            slope = lambda k, one=one, least=least: one.log_moment(eta, k)[0] / k if k else least
            high = 1.0
            while slope(high) <= 0:
                high *= 2
            exponents[j] = brentq(slope, 0.0, high, xtol=1e-12 * high)
    return _one_or_all(exponents)


def transition_spread(mean: float, step_size: float, *, steps: float | int = math.inf, alpha: float = 1e-3) -> float:
    """Return the spread M of a two-point law mean +- M above which a spurious signal is typically filtered out.

    It solves alpha exp(T Lambda) = 1 for T steps from size alpha, with the Lyapunov exponent Lambda (`lyapunov`). For
    T -> infinity this is Lambda = 0, with the solution M^2 = mean^2 + 2 mean/eta.

    >>> from undertow.sensing.growth import transition_spread
    >>> print(round(transition_spread(1.0, 0.05), 2), round(transition_spread(1.0, 0.05, steps=200), 1))
    6.4 3.5
    """
    validate.finite_number("transition_spread", "step_size", step_size, positive=True)
    validate.finite_number("transition_spread", "alpha", alpha, positive=True)
    # 2 lambda = log|(1 + eta mean)^2 - eta^2 M^2| = -2 log(alpha)/T
    target = math.exp(-2 * math.log(alpha) / steps) if math.isfinite(steps) else 1.0
    inside = (1 + step_size * mean) ** 2 - target
    return math.sqrt(inside) / step_size if inside > 0 else 0.0


def paper_window(law: LawLike) -> tuple[float, float]:
    """Return the step sizes of the paper's theorem, (24/M2, 1/(64 M1)); empty if the first is not below the second.

    M1 = max|s|, infinite for a Gaussian (so its window is empty), and M2 = Var s/(1 + |E s|), the least over directions
    (heterogeneity, Assumption 2).

    >>> from undertow.sensing.growth import paper_window
    >>> from undertow.sensing.laws import two_point
    >>> low, high = paper_window(two_point(1.0, 8.0))
    >>> print(f"({low:.2f}, {high:.5f})")
    (0.75, 0.00174)
    """
    law = as_law("paper_window", law)
    largest = float(np.abs(np.stack(law.support())).max())
    relative = np.diag(np.asarray(law.covariance())) / (1 + np.abs(np.asarray(law.mean())))
    variance = float(relative.min())
    return (24 / variance if variance else math.inf, 1 / (64 * largest) if largest else math.inf)


@eqx.filter_jit
def _iterate(
    law: AbstractLaw, key: Array, eta: Array, start: Array, floor: Array, steps: Array, runs: int
) -> tuple[Array, Array]:
    """Return q^2 at the end and its largest value, for q <- q (1 + eta (s - q^2)) + floor * normal."""

    def step(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        q, top = carry
        first, second = jax.random.split(jax.random.fold_in(key, index))
        s = law.draw(first, runs)[:, 0].astype(q.dtype)
        kick = jax.lax.cond(floor > 0, lambda: jax.random.normal(second, q.shape, q.dtype), lambda: jnp.zeros_like(q))
        q = q * (1 + eta * (s - q**2)) + floor * kick
        return q, jnp.maximum(top, q**2)

    q = jnp.full((runs,), start, eta.dtype)
    q, top = jax.lax.fori_loop(0, steps, step, (q, q**2))
    return q**2, top


def scalar_map(
    law: LawLike,
    step_size: Number,
    *,
    steps: int,
    key: KeyLike,
    runs: int = 1000,
    alpha: float = 1e-3,
    floor: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the spurious signal q^2 after `steps` of q <- q (1 + eta (s - q^2)), and its maximum, per run.

    The map approximates the full matrix problem, where other directions have little influence. `floor` adds a Gaussian
    of this size per step, which re-seeds the component as measurement noise does, and causes bursts.

    >>> from undertow.sensing.growth import scalar_map
    >>> from undertow.sensing.laws import two_point
    >>> end, _ = scalar_map(two_point(1.0, 8.0), 0.05, steps=200, key=0)
    >>> print((end < 0.1).mean() > 0.9)
    True
    """
    steps = validate.positive_integer("scalar_map", "steps", steps)
    runs = validate.positive_integer("scalar_map", "runs", runs)
    validate.finite_number("scalar_map", "step_size", step_size)
    law = as_law("scalar_map", law)
    key = validate.as_key("scalar_map", key)
    numbers = (jnp.asarray(x, jnp.result_type(float)) for x in (step_size, alpha, floor))
    end, top = _iterate(law, key, *numbers, jnp.asarray(steps), runs)
    return np.asarray(end), np.asarray(top)


@eqx.filter_jit
def _row(
    key: Array, means: Array, spread: Array, eta: Array, alpha: Array, level: Array, steps: int, runs: int
) -> Array:
    """Return P(q^2 < level) for every mean at one spread; one random word gives 32 signs."""
    words = jax.random.bits(key, (steps, runs // 32), jnp.uint32)

    def step(q: Array, word: Array) -> tuple[Array, None]:
        bits = (word[:, None] >> jnp.arange(32, dtype=jnp.uint32)[None]) & 1
        sign = (2 * bits.reshape(-1).astype(q.dtype) - 1)[None]
        return q * (1 + eta * (means[:, None] + spread * sign - q**2)), None

    q, _ = jax.lax.scan(step, jnp.full((means.shape[0], runs), alpha, means.dtype), words)
    return jnp.mean(q**2 < level, axis=1)


def phase_diagram(
    means: Numbers, spreads: Sequence[Number] | np.ndarray | Array, step_size: Number, *, steps: int, key: KeyLike,
    runs: int = 256, alpha: float = 1e-3, level: float = 0.1,
) -> Float[np.ndarray, "spreads means"]:  # fmt: skip
    """Return the probability that a spurious signal of two-point law mean +- spread is below `level` after `steps`.

    The estimate uses the scalar map with `runs` runs (rounded up to a multiple of 32) per cell.

    >>> from undertow.sensing.growth import phase_diagram
    >>> print(phase_diagram([1.0], [1.0, 8.0], 0.05, steps=200, key=0).round(1).ravel())
    [0. 1.]
    """
    steps = validate.positive_integer("phase_diagram", "steps", steps)
    runs = 32 * -(-validate.positive_integer("phase_diagram", "runs", runs) // 32)
    key = validate.as_key("phase_diagram", key)
    centre = jnp.asarray(means, jnp.float32)
    numbers = [jnp.asarray(x, jnp.float32) for x in (step_size, alpha, level)]
    rows = [
        _row(jax.random.fold_in(key, i), centre, jnp.asarray(spread, jnp.float32), *numbers, steps, runs)
        for i, spread in enumerate(spreads)
    ]
    return np.stack([np.asarray(row) for row in rows])
