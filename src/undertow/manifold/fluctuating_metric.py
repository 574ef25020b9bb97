"""The mean step of an optimiser whose metric fluctuates with its params.

The metric S(v) depends on an average v+ = v + k (g^2 - v) of squared gradients, k = 1 - b2. Where v follows the
fluctuations x of the params in part, S is correlated with the gradient that it multiplies. With w = v - E v, the
momentum m+ = b1 m + (1 - b1) g, and X the stationary covariance of x, the moments c_i = E[x w_i] and E[m w_i] of the
linear dynamics are stationary for

    k (e_i - c_i) = eta S E[m w_i],     e_i = X grad E g_i^2

and the mean step gains -eta S'(v_i) E[m_i w_i] in component i. Without momentum and to leading order

    c_i = k (k + eta S H)^-1 (e_i - eta S T_i),     E[m_i w_i] = (H c_i)_i + k E g_i^3,     T_i = E[g g_i^2]

Only the normal components of c_i enter, so that everything is computed in the basis V of a frame of the rescaled
problem (`metric`), without a D x D matrix.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow._validate import Number
from undertow.manifold.fluctuations import Fluctuations
from undertow.manifold.metric import RescaledNoise
from undertow.noise.base import second_moment
from undertow.noise.second_moment import SquaresAlong, squares_along
from undertow.noise.third_moment import third_moment
from undertow.optimisers.base import AbstractOptimiser

__all__ = ["Metric", "averaged_second_moment", "metric_at", "metric_velocity", "squares_around"]

Unravel = Callable[[Array], PyTree]


class Metric(NamedTuple):
    """The diagonal metric of an optimiser in one state, in flat coordinates."""

    diagonal: Float[Array, " D"]
    """S."""
    slope: Float[Array, " D"]
    """dS/dv; zero without v."""
    rate: Float[Array, " D"]
    """k = 1 - b2, the weight of a new squared gradient in v; zero without v."""
    decay: Float[Array, " D"]
    """The rate of weight decay: params shrink by eta times this per step."""

    @property
    def root(self) -> Float[Array, " D"]:
        """S^(1/2)."""
        return jnp.sqrt(self.diagonal)


def metric_at(
    optimiser: AbstractOptimiser, v: Float[Array, " D"] | None, point: Float[Array, " D"], unravel: Unravel
) -> Metric:
    """Return the metric of an optimiser for the average v of squared gradients; None: its metric is constant."""
    params = unravel(point)
    tiny = jnp.finfo(point.dtype).tiny  # the slope of the metric is infinite at v = 0
    of = lambda s: trees.ravel(optimiser.metric(None if s is None else {"v": unravel(jnp.maximum(s, tiny))}, params))
    zero, one = jnp.zeros_like(point), jnp.ones_like(point)
    if v is None:
        diagonal, slope, rate = of(None), zero, zero
    else:
        diagonal, slope = jax.jvp(of, (v,), (one,))
        rate = trees.ravel(optimiser.slow_state({"v": unravel(zero)}, unravel(one), 1.0))
    return Metric(diagonal, slope, rate, trees.ravel(optimiser.decay(unravel(diagonal))))


def squares_around(noise: RescaledNoise, around: Fluctuations) -> SquaresAlong:
    """Return E g^2 of the original gradients at the mean, its slopes along the basis, and tr X d^2 of it."""
    frame = around.frame
    params_at = lambda phi: jax.tree.map(jnp.multiply, noise.root, frame.unravel(phi))
    squares = squares_along(noise.noise, params_at, frame.point, frame.normal, around.partners)
    if not around.beside:
        return squares
    value = lambda phi: trees.ravel(second_moment(noise.noise, params_at(phi)))

    def second(u: Array, w: Array) -> Array:
        return jax.jvp(lambda x: jax.jvp(value, (x,), (u,))[1], (frame.point,), (w,))[1]

    return squares._replace(second=squares.second + around.expect_beside(second))


def averaged_second_moment(squares: SquaresAlong, step_size: Array) -> Float[Array, " D"]:
    """Return E g^2 over the fluctuations, (1 + (eta/2) tr X d^2) E g^2 at the mean."""
    return squares.value + step_size / 2 * squares.second


def metric_velocity(
    noise: RescaledNoise,
    around: Fluctuations,
    squares: SquaresAlong,
    metric: Metric,
    step_size: Array,
    memory: Number,
) -> Float[Array, " D"]:
    """Return the gain of the mean step over eta, in the original coordinates."""
    frame, eta, k = around.frame, step_size, metric.rate
    basis, h = frame.normal, jnp.maximum(frame.curvature, 0)[None]
    slopes = squares.slopes  # grad E g_i^2 in the basis, one row for each i
    covariance = eta * around.inner
    followed = slopes @ covariance
    b1 = jnp.asarray(memory, basis.dtype)
    b2 = 1 - k
    share = (1 - b1) / (1 - b1 * b2)
    momentum = -((slopes * h) @ covariance - b1 * h * followed) / (1 + b1)  # E[m x'] grad E g_i^2
    inner = share[:, None] * h * followed + (k * b1 / (1 - b1 * b2))[:, None] * momentum
    params = frame.unravel(frame.point)
    moments = third_moment(noise.noise, jax.tree.map(jnp.multiply, noise.root, params))
    directions = metric.root[:, None] * basis
    outer = jnp.zeros_like(frame.point)
    if moments is not None:
        inner = inner - eta * (share**2 * b2)[:, None] * h * moments.squares_along(directions)
        outer = share * metric.diagonal * moments.cubes()
    total = outer + jnp.sum(directions * inner / (k[:, None] + eta * (share * b2)[:, None] * h), axis=1)
    return -metric.slope / metric.diagonal * k * total
