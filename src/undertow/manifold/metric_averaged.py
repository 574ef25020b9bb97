"""The averaged flow of an optimiser with a metric: the mean of params and of v at a finite step, from any start.

    d theta/dt = (1 + (eta/2) (1 + b1)/(1 - b1) S H + (eta/2) decay) F
    F          = -S grad L - (eta/2) S d3L[X] - decay theta + G
    d v/dt     = ((1 - b2)/eta) (E g^2 - v),    (1 - b2)/(1 - b2^(1 + t/eta)) with bias correction in place of 1 - b2

eta X is the covariance of the fluctuations in the metric, G the gain by a metric that follows them in part
(`fluctuating_metric`), and E g^2 is averaged over them. The factor with the Hessian H makes the flow pass through the
points of the discrete steps; b1 delays the gradients by b1/(1 - b1) steps, and the decay too where it is a part of
them. Fluctuations relax as if the decay were added to every curvature of S H. The flow is solved for log v, and for
log (v + shift) where v starts at 0.
"""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow._stiff import Linearisation, Multiplier, RosenbrockW, along_eigenvectors
from undertow.manifold.averaged import Observe, Path, observation_of, record_of
from undertow.manifold.fluctuating_metric import (
    Metric,
    averaged_second_moment,
    metric_at,
    metric_velocity,
    squares_around,
)
from undertow.manifold.fluctuations import Closure, Fluctuations, directions, fluctuations
from undertow.manifold.metric import RescaledNoise
from undertow.noise.base import AbstractNoise, second_moment
from undertow.optimisers.base import AbstractOptimiser

__all__ = ["AveragedMotion", "correction_sizes", "least_relaxed", "shift_of", "solve_metric_average"]

Unravel = Callable[[Array], PyTree]
State = tuple[Float[Array, " D"], Float[Array, " D"] | None]
"""The mean of the params, and the logarithm of v + shift."""

SHIFT = 1e-12
"""The shift where v starts at 0, relative to the largest v. The metric of such a parameter is that of v itself."""


class AveragedMotion(eqx.Module):
    """The averaged flow of an optimiser in its params and v."""

    noise: AbstractNoise
    optimiser: AbstractOptimiser
    step_size: Float[Array, ""]
    unravel: Unravel = eqx.field(static=True)
    closure: Closure = eqx.field(static=True)
    shift: Float[Array, " D"] | float = 0.0

    def state(self, params: PyTree, v: Float[Array, " D"] | None) -> State:
        """Return the state for params and the average v of squared gradients."""
        return jax.flatten_util.ravel_pytree(params)[0], None if v is None else jnp.log(v + self.shift)

    def v(self, state: State) -> Float[Array, " D"] | None:
        """Return the average v of squared gradients; None for a constant metric."""
        return None if state[1] is None else jnp.maximum(jnp.exp(state[1]) - self.shift, 0)

    def metric(self, state: State) -> Metric:
        """Return the metric at a state."""
        return metric_at(self.optimiser, self.v(state), state[0], self.unravel)

    def local(self, state: State) -> tuple[Metric, RescaledNoise]:
        """Return the metric, and the noise in the coordinates in which it is the identity."""
        metric = self.metric(state)
        return metric, RescaledNoise(self.noise, self.unravel(metric.root))

    def around(self, state: State, age: Array) -> tuple[Metric, RescaledNoise, Fluctuations]:
        """Return the metric, the rescaled noise and its fluctuations at a state, the time `age` after the start."""
        metric, noise = self.local(state)
        phi, memory = state[0] / metric.root, self.optimiser.memory
        decay = jnp.mean(metric.decay)  # the same for all params in every optimiser of this library
        around = fluctuations(noise, phi, self.unravel, age, self.step_size, self.closure, memory, decay)
        return metric, noise, around

    def noise_drift(self, metric: Metric, noise: RescaledNoise, around: Fluctuations) -> Float[Array, " D"]:
        """Return -(eta/2) S d3L[X]."""
        gradient = lambda x: trees.ravel(noise.problem.gradient(self.unravel(x)))

        def third(u: Array, w: Array) -> Array:
            return jax.jvp(lambda x: jax.jvp(gradient, (x,), (u,))[1], (around.frame.point,), (w,))[1]

        return -self.step_size / 2 * metric.root * around.expect(third)

    def sizes(self, state: State, age: Array) -> tuple[Array, Array]:
        """Return |change of the drift by noise at a finite step| and |gain G|, both over |drift by noise|.

        They are not finite for a loss without third derivatives, where this drift is 0.
        """
        metric, noise, around = self.around(state, age)
        phi, decay = around.frame.point, around.decay
        small = fluctuations(noise, phi, self.unravel, age, self.step_size, "small_step", decay=decay)
        drift, plain = (self.noise_drift(metric, noise, x) for x in (around, small))
        gain = jnp.zeros(())
        if state[1] is not None:
            squares = squares_around(noise, around)
            gain = metric_velocity(noise, around, squares, metric, self.step_size, self.optimiser.memory)
            gain = jnp.linalg.norm(gain)
        scale = jnp.linalg.norm(plain)
        return jnp.linalg.norm(drift - plain) / scale, gain / scale

    def velocity(self, state: State, age: Array) -> State:
        """Return d theta/dt and d log (v + shift)/dt."""
        (point, logarithm), eta = state, self.step_size
        metric, noise, around = self.around(state, age)
        gradient = lambda x: trees.ravel(noise.problem.gradient(self.unravel(x)))
        phi = around.frame.point
        mean = -metric.root * gradient(phi) + self.noise_drift(metric, noise, around) - metric.decay * point
        corrected = self.closure != "small_step"
        squares = squares_around(noise, around) if corrected and logarithm is not None else None
        if squares is not None:
            mean = mean + metric_velocity(noise, around, squares, metric, eta, self.optimiser.memory)
        if corrected:
            hessian = jax.jvp(gradient, (phi,), (mean / metric.root,))[1]
            before_memory = eta / 2 if self.optimiser.decoupled else self._delay()
            mean = mean + self._delay() * metric.root * hessian + before_memory * metric.decay * mean
        v = self.v(state)
        if logarithm is None or v is None:
            return mean, None
        target = trees.ravel(second_moment(self.noise, self.unravel(point)))
        if self.closure == "averaged_noise" and squares is not None:
            target = averaged_second_moment(squares, eta)
        slope = self.optimiser.slow_state({"v": self.unravel(v)}, self.unravel(target), 1.0)
        slope = jnp.asarray(self.optimiser.start_up(age / eta)) * trees.ravel(slope)
        # divide twice, because eta v may be too small for a float
        return mean, slope / eta / jnp.maximum(jnp.exp(logarithm), jnp.finfo(point.dtype).tiny)

    def linearise(self, state: State) -> Linearisation:
        """Return the linearisation of the flow: -S H, with its delay, and -(1 - b2)/eta for log v."""
        metric, noise = self.local(state)
        frame = directions(noise.problem, state[0] / metric.root, self.unravel)
        h = jnp.maximum(frame.curvature, 0)
        delay = self._delay() if self.closure != "small_step" else 0.0
        across = along_eigenvectors(frame.normal, h * (1 + delay * h) + jnp.mean(metric.decay))

        def apply(function: Multiplier, vector: State) -> State:
            point = metric.root * across(function, vector[0] / metric.root)
            return point, None if vector[1] is None else function(metric.rate / self.step_size) * vector[1]

        return apply

    def fastest_rate(self, metric: Metric) -> Float[Array, ""]:
        """Return the rate at which v relaxes at the start."""
        return jnp.asarray(self.optimiser.start_up(0.0)) * jnp.max(metric.rate) / self.step_size

    def _delay(self) -> Array:
        b1 = jnp.asarray(self.optimiser.memory, self.step_size.dtype)
        return self.step_size / 2 * (1 + b1) / (1 - b1)


def shift_of(v: Float[Array, " D"] | None) -> Float[Array, " D"] | float:
    """Return the number that is added to v before its logarithm is taken: 0 but where v is 0 at the start."""
    if v is None:
        return 0.0
    largest = jnp.max(v)
    return jnp.where(v > 0, 0, jnp.where(largest > 0, SHIFT * largest, 1))


@eqx.filter_jit
def solve_metric_average(
    motion: AveragedMotion,
    params: PyTree,
    v: Float[Array, " D"] | None,
    times: Float[Array, " times"],
    observe: Observe,
    tolerance: Float[Array, ""],
    max_steps: int,
) -> Path:
    """Solve the averaged flow in (theta, log v); v is observed too. Points after a failure are not finite."""
    state = motion.state(params, v)
    times = times.astype(state[0].dtype)
    metric, noise = motion.local(state)
    sharpest = jnp.max(jnp.abs(directions(noise.problem, state[0] / metric.root, motion.unravel).curvature))
    first = 0.1 / (sharpest + motion.fastest_rate(metric) + 1 / times[-1])
    path = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: motion.velocity(y, t)),
        RosenbrockW(motion.linearise),
        times[0],
        times[-1],
        jnp.minimum(first, times[1]),
        state,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.ClipStepSizeController(diffrax.PIDController(tolerance, tolerance), step_ts=times),
        max_steps=max_steps,
        adjoint=diffrax.ForwardMode(),
        throw=False,
    )

    def observation(at: tuple[State, Array]) -> tuple:
        _, noise, around = motion.around(*at)
        original = lambda f: lambda phi: f(jax.tree.map(jnp.multiply, noise.root, phi))
        rescaled: Observe = {name: original(function) for name, function in observe.items()}
        observed = observation_of(around, noise.problem, rescaled, motion.step_size)
        v = motion.v(at[0])
        if v is not None:
            observed = {**observed, "v": motion.unravel(v)}
        return observed, record_of(around, motion.step_size)

    observed, records = jax.lax.map(observation, (path.ys, times))
    return Path(path.ys[0], observed, records, path.stats["num_steps"])


@eqx.filter_jit
def correction_sizes(
    motion: AveragedMotion, point: Float[Array, " D"], v: PyTree, time: float | Array
) -> tuple[Array, Array]:
    """Return the sizes of the corrections at the end of the flow; see `AveragedMotion.sizes`."""
    state = motion.state(point, None if v is None else trees.ravel(v))
    return motion.sizes(state, jnp.asarray(time, point.dtype))


@eqx.filter_jit
def least_relaxed(
    motion: AveragedMotion, params: PyTree, v: Float[Array, " D"] | None, time: float | Array
) -> Float[Array, ""]:
    """Return the least curvature of S^(1/2) H S^(1/2) at the start that relaxes within `time`; inf without one."""
    state = motion.state(params, v)
    metric, noise = motion.local(state)
    h = directions(noise.problem, state[0] / metric.root, motion.unravel).curvature
    return jnp.min(jnp.where(h * time > 1, h, jnp.inf))
