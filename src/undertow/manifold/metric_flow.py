"""The slow motion of an optimiser with a metric: params on the manifold, and the average v of squared gradients.

    d theta/d tau = S^(1/2) {drift of SGD's limit at phi = S^(-1/2) theta} - (1/eta) P_S decay theta + corrections
    d v/d tau     = kappa (E g^2 - v),     kappa = (1 - b2)/eta^2

The corrections are those of a finite step size: the stationary covariance X of the steps instead of its limit for small
steps, the correlation of a fluctuating metric with the gradient (`fluctuating_metric`), and E g^2 averaged over the
fluctuations. The flow is solved for log v, which stays positive.
"""

from collections.abc import Callable
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow.manifold.drift import covariance_parts, normal_part
from undertow.manifold.fluctuating_metric import (
    Metric,
    averaged_second_moment,
    metric_at,
    metric_velocity,
    squares_around,
)
from undertow.manifold.fluctuations import stationary
from undertow.manifold.geometry import Frame, frame_at
from undertow.manifold.metric import RescaledNoise
from undertow.manifold.paths import FLATTEST_OF_FLOW, MOST_ATTEMPTS, AbstractChart, Recorder, RetractedTsit5, StateAfter
from undertow.noise.base import AbstractNoise, second_moment
from undertow.optimisers.base import AbstractOptimiser

__all__ = ["CORRECTIONS", "TOLERANCE_WITH_STATE", "MetricMotion", "Velocity", "metric_flow"]

Unravel = Callable[[Array], PyTree]

CORRECTIONS = ("finite_step", "fluctuating_metric")
"""The corrections for a finite step size."""

TOLERANCE_WITH_STATE = 1e-4
"""The default error of a step of the flow of (params, v). It is far below the error of the theory at a finite step."""


class Velocity(NamedTuple):
    """The parts of d theta/d slow_time along the manifold, and the value to which v relaxes."""

    limit: Float[Array, " D"]
    """The limit of small steps with the metric."""
    decay: Float[Array, " D"]
    finite_step: Float[Array, " D"]
    """The change of the limit by the covariance of a finite step size."""
    fluctuating_metric: Float[Array, " D"]
    target: Float[Array, " D"] | None
    """E g^2; None for a constant metric."""

    @property
    def total(self) -> Float[Array, " D"]:
        """d theta/d slow_time."""
        return self.limit + self.decay + self.finite_step + self.fluctuating_metric


class MetricMotion(AbstractChart):
    """The slow motion of an optimiser near a point of the manifold."""

    noise: AbstractNoise
    optimiser: AbstractOptimiser
    step_size: Float[Array, ""] | None
    """None: no corrections, no decay, and v in equilibrium."""
    rank: int = eqx.field(static=True)
    least_squares: bool = eqx.field(static=True)
    unravel: Unravel = eqx.field(static=True)
    adaptive: bool = eqx.field(static=True)
    """Whether the metric depends on v."""
    corrections: tuple[str, ...] = eqx.field(static=True)
    """Those of `CORRECTIONS` that the velocity has, at a given step size."""

    def second_moment(self, point: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return E g^2 at a point."""
        return trees.ravel(second_moment(self.noise, self.unravel(point)))

    def v(self, point: Float[Array, " D"], v: Float[Array, " D"] | None) -> Float[Array, " D"] | None:
        """Return the state v: as given or, for None, in equilibrium at the point; None for a constant metric."""
        if not self.adaptive or v is not None:
            return v
        v = self.second_moment(point)
        if "finite_step" not in self.corrections or self.step_size is None:
            return v
        noise, frame = self.local(point, metric_at(self.optimiser, v, point, self.unravel))
        around = stationary(noise, frame, self.step_size, self.optimiser.memory)
        return averaged_second_moment(squares_around(noise, around), self.step_size)

    def metric(self, point: Float[Array, " D"], v: Float[Array, " D"] | None) -> Metric:
        """Return the metric for the state v, which is that of equilibrium for None."""
        return metric_at(self.optimiser, self.v(point, v), point, self.unravel)

    def local(self, point: Float[Array, " D"], metric: Metric) -> tuple[RescaledNoise, Frame]:
        """Return the noise in the coordinates in which the metric is the identity, and the frame there."""
        noise = RescaledNoise(self.noise, self.unravel(metric.root))
        return noise, self.frame(noise, point / metric.root)

    def velocity(self, point: Float[Array, " D"], v: Float[Array, " D"] | None) -> Velocity:
        """Return the parts of the velocity at a point of the manifold."""
        metric = self.metric(point, v)
        noise, frame = self.local(point, metric)
        covariance = noise.covariance(self.unravel(frame.point))
        _, normal, mixed = covariance_parts(noise.problem, frame, covariance, 0.0)
        zero = jnp.zeros_like(point)
        target = self.second_moment(point) if self.adaptive else None
        if self.step_size is None:
            return Velocity(metric.root * (normal + mixed) / 2, zero, zero, zero, target)
        eta = self.step_size
        along = lambda vector: metric.root * frame.project(vector / metric.root)
        decay = -along(metric.decay * point) / eta
        limit = metric.root * (normal + mixed) / 2
        if not self.corrections:
            return Velocity(limit, decay, zero, zero, target)
        finite_step = "finite_step" in self.corrections
        around = stationary(noise, frame, eta if finite_step else 0 * eta, self.optimiser.memory)
        squares = squares_around(noise, around) if self.adaptive else None
        finite = gain = zero
        if finite_step:
            finite = metric.root * (normal_part(noise.problem, frame, around.inner) - normal) / 2
            target = None if squares is None else averaged_second_moment(squares, eta)
        if squares is not None and "fluctuating_metric" in self.corrections:
            gain = along(metric_velocity(noise, around, squares, metric, eta, self.optimiser.memory)) / eta
        return Velocity(limit, decay, finite, gain, target)

    def relax(self, v: Float[Array, " D"], target: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return d v/d slow_time."""
        assert self.step_size is not None
        state = {"v": self.unravel(v)}
        return trees.ravel(self.optimiser.slow_state(state, self.unravel(target), self.step_size))

    def retract(self, point: Float[Array, " D"], v: Float[Array, " D"] | None) -> Float[Array, " D"]:
        """Return theta - S^(1/2) H_S^+ S^(1/2) grad L, a Newton step back to the manifold in the metric."""
        metric = self.metric(point, v)
        noise, frame = self.local(point, metric)
        gradient = trees.ravel(noise.problem.gradient(self.unravel(frame.point)))
        return metric.root * (frame.point - frame.pseudo_inverse(gradient))

    def at(self, x: Float[Array, " D"], v: Float[Array, " D"] | None) -> tuple[RescaledNoise, Frame]:
        return self.local(x, self.metric(x, v))

    def frame(self, noise: AbstractNoise, point: Float[Array, " D"]) -> Frame:
        return frame_at(noise.problem, self.unravel(point), rank=self.rank, least_squares=self.least_squares)

    def drift(
        self, noise: AbstractNoise, frame: Frame, x: Float[Array, " D"], v: Float[Array, " D"] | None
    ) -> tuple[Float[Array, " D"], StateAfter]:
        parts = self.velocity(x, v)

        def state_after(dt: Array) -> Array | None:
            if v is None or parts.target is None:
                return v
            rate = self.relax(jnp.zeros_like(v), jnp.ones_like(v))
            return parts.target + (v - parts.target) * jnp.exp(-rate * dt)

        return parts.total / self.metric(x, v).root, state_after

    def params(self, point: Float[Array, " D"], x: Float[Array, " D"], v: Float[Array, " D"] | None) -> Array:
        return self.metric(x, v).root * point

    def own_frame(self, x: Float[Array, " D"], frame: Frame) -> Frame:
        return frame_at(self.noise.problem, self.unravel(x), rank=self.rank, least_squares=self.least_squares)


class MetricPath(NamedTuple):
    """The solution at the times of its records."""

    end: Float[Array, " D"]
    records: PyTree
    lost: Float[Array, ""]
    """The slow time at which the rank was lost; inf: at none."""
    sizes: Float[Array, "times 3"]
    """Norms of the limit with decay, of the change by a finite step, and by the fluctuating metric."""


@eqx.filter_jit
def metric_flow(
    motion: MetricMotion,
    start: Float[Array, " D"],
    v: Float[Array, " D"] | None,
    gaps: Array,
    recorder: Recorder,
    tolerance: Array,
) -> MetricPath:
    """Solve the flow of (theta, log v), or of theta with v in equilibrium for None, with a retraction per step."""
    follows = v is not None
    tiny = jnp.finfo(start.dtype).tiny
    value = lambda y: jnp.maximum(jnp.exp(y[1]), tiny) if follows else None

    def slope(y: tuple) -> tuple:
        v = value(y)
        parts = motion.velocity(y[0], v)
        if v is None or parts.target is None:
            return parts.total, None
        return parts.total, motion.relax(v, parts.target) / v

    def back(y: tuple) -> tuple:
        return motion.retract(y[0], value(y)), y[1]

    y = back((start, jnp.log(jnp.maximum(v, tiny)) if follows else None))
    times = jnp.cumsum(gaps).astype(start.dtype)
    path = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: slope(y)),
        RetractedTsit5(back=back),
        jnp.zeros_like(times[-1]),
        times[-1],
        None,
        y,
        saveat=diffrax.SaveAt(t0=True, ts=times),
        stepsize_controller=diffrax.PIDController(tolerance, tolerance),
        max_steps=MOST_ATTEMPTS * gaps.size,
        adjoint=diffrax.ForwardMode(),
        throw=False,
    )

    def record(saved: tuple) -> tuple:
        # saved points are those before the retraction; infinite where the flow was too stiff to arrive
        finite = jnp.all(jnp.isfinite(trees.ravel(saved)))
        point = jnp.where(finite, back(saved)[0], jnp.nan)
        v = motion.v(point, value(saved))
        return point, v, recorder(point, FLATTEST_OF_FLOW), _sizes(motion.velocity(point, v))

    points, values, (records, valid), sizes = jax.lax.map(record, path.ys)
    lost = jnp.min(jnp.where(valid[1:], jnp.inf, jnp.cumsum(gaps)))
    if values is not None:
        records = {**records, "v": jax.vmap(motion.unravel)(values)}
    return MetricPath(points[-1], records, lost, sizes)


def _sizes(velocity: Velocity) -> Float[Array, " 3"]:
    parts = (velocity.limit + velocity.decay, velocity.finite_step, velocity.fluctuating_metric)
    return jnp.stack([jnp.linalg.norm(part) for part in parts])
