"""The SDE of SGD: d theta = -grad L dt + sqrt(step_size) Sigma^(1/2) dW, by Euler-Maruyama on the same engine."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import checked_call
from undertow._validate import KeyLike, Number
from undertow.covariance import Projected
from undertow.dynamics import drive
from undertow.dynamics.clock import StepSize, steps_of_time
from undertow.noise.base import AbstractNoise, normals, normals_now, second_moment
from undertow.optimisers.base import AbstractOptimiser, Rates, StepSizes, first_squares
from undertow.optimisers.sgd import SGD
from undertow.optimisers.transformation import theory_optimiser
from undertow.problem import AbstractProblem, Population
from undertow.regime import Regime
from undertow.trajectory import ProgressReport, Trajectory

__all__ = ["AbstractEulerStep", "EulerStep", "GaussianNoise", "diffuse", "euler_noise", "euler_optimiser"]


class AbstractEulerStep(AbstractOptimiser):
    """Euler-Maruyama steps of the diffusion of an optimiser; subclasses choose the start of its slow state."""

    noise: AbstractNoise
    optimiser: AbstractOptimiser
    substeps: int = eqx.field(static=True)

    def update(self, params: PyTree, state: PyTree, gradient: PyTree, rates: Rates) -> tuple[PyTree, PyTree]:
        """Return params and the state after one step; `rates` is its length, and the `start_up` of the optimiser."""
        dt, start_up = rates
        # use the metric of the new state, as Adam does: with an old v of 0 a gradient would be divided by eps
        state = state if state is None else self._relaxed(params, state, start_up)
        metric = self.optimiser.metric(state, params)
        decay = self.optimiser.decay(metric)
        moved = jax.tree.map(
            lambda p, g, s, rate: p - dt.astype(p.dtype) * (s * g + rate * p), params, gradient, metric, decay
        )
        return moved, state

    def _relaxed(self, params: PyTree, state: PyTree, start_up: Array) -> PyTree:
        slope = self.optimiser.slow_state(state, second_moment(self.noise, params), 1.0)
        return jax.tree.map(lambda v, change: v + start_up.astype(v.dtype) * change / self.substeps, state, slope)

    def metric(self, state: PyTree, params: PyTree) -> PyTree:
        return self.optimiser.metric(state, params)

    def decay(self, metric: PyTree) -> PyTree:
        return self.optimiser.decay(metric)

    def slow_state(self, state: PyTree, second_moment: PyTree, step_size: Number) -> PyTree:
        return self.optimiser.slow_state(state, second_moment, step_size)

    def regime(self, step_size: Number, curvature: Number) -> Regime:
        return self.optimiser.regime(step_size, curvature)


class EulerStep(AbstractEulerStep):
    """One Euler-Maruyama step of the diffusion of an optimiser in its params and its slow state.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.dynamics.diffuse import EulerStep
    >>> noise = ut.Isotropic(ut.Problem(lambda w, x: 0 * w.sum() + 0 * x, jnp.zeros(1)), 0.5)
    >>> print(EulerStep(noise, ut.Adam(), 4).init(jnp.zeros(2))["v"].round(4))  # the variance
    [0.25 0.25]
    """

    def rates(self, steps: Int[Array, "..."], step_sizes: StepSizes) -> Rates:
        return step_sizes, jnp.asarray(self.optimiser.start_up(steps / self.substeps))

    def init(self, params: PyTree) -> PyTree:
        known = jax.eval_shape(self.optimiser.init, params)
        # the velocity of SGD with momentum has the names of params, of which one may be "v"
        slow = not isinstance(self.optimiser, SGD) and isinstance(known, dict) and "v" in known
        return {"v": first_squares(self.optimiser, params, second_moment(self.noise, params))} if slow else None


def euler_optimiser(noise: AbstractNoise, optimiser: AbstractOptimiser, substeps: int) -> AbstractOptimiser:
    """Return the optimiser whose steps are Euler-Maruyama steps; for SGD without momentum these are steps of SGD."""
    plain = isinstance(optimiser, SGD) and optimiser.prepared().momentum is None
    return optimiser if plain else EulerStep(noise, optimiser, substeps)


class GaussianNoise(AbstractNoise):
    """Gaussian noise with the mean of another noise and `inflation^2` times its covariance, drawn by `sqrt_mv`.

    An Euler-Maruyama step of length dt of the SDE of SGD with step eta is an SGD step of size dt with this noise and
    inflation sqrt(eta/dt).

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.dynamics.diffuse import GaussianNoise
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([0.0, 4.0]))
    >>> print(GaussianNoise(ut.Minibatch(problem, 1), jnp.array(1.0)).covariance(jnp.array(2.0)).trace())
    4.0
    """

    problem: AbstractProblem
    noise: AbstractNoise
    inflation: Float[Array, ""]

    def __init__(self, noise: AbstractNoise, inflation: Float[Array, ""]):
        self.problem = noise.problem
        self.noise = noise
        self.inflation = inflation

    def randomness(self, key: Key[Array, ""], count: int, like: PyTree = None) -> PyTree:
        return normals(key, count, None if like is None else self._normal_structure(like))

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        sigma = self.noise.covariance(params)
        disturbance = sigma.sqrt_mv(normals_now(slice, sigma.normal_structure()))
        return trees.add(self.noise.mean(params), trees.scale(self.inflation, disturbance))

    def covariance(self, params: PyTree) -> Projected:
        return Projected(self.noise.covariance(params), lambda v: trees.scale(self.inflation, v))

    def mean(self, params: PyTree) -> PyTree:
        return self.noise.mean(params)

    def check(self, params: PyTree) -> None:
        self.noise.check(params)

    def _normal_structure(self, params: PyTree) -> PyTree:
        def blank(p: PyTree) -> PyTree:
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.noise.covariance(p).normal_structure())

        return jax.eval_shape(blank, params)


def euler_noise(noise: AbstractNoise, substeps: int) -> GaussianNoise:
    """Return the noise of the Euler-Maruyama steps of which `substeps` make one step of SGD."""
    return GaussianNoise(noise, jnp.sqrt(jnp.asarray(substeps, jnp.result_type(float))))


@checked_call("diffuse")
def diffuse(
    noise: AbstractNoise,
    params: PyTree | Callable = None,
    *,
    step_size: StepSize | None = None,
    time: Number,
    key: KeyLike | None = None,
    observe: dict[str, Callable[[PyTree], PyTree]] | None = None,
    average: dict[str, Callable[[PyTree], PyTree]] | None = None,
    every: int | None = None,
    seeds: int | None = None,
    optimiser: AbstractOptimiser | None = None,
    optimiser_state: PyTree = None,
    weight_decay: Number = 0.0,
    substeps: int = 4,
    progress: ProgressReport = None,
    lane_width: int | None = None,
) -> Trajectory:
    """Solve d theta = -(grad L + lambda theta) dt + sqrt(step_size) Sigma(theta)^(1/2) dW up to `time`.

    This is the diffusion that SGD with the same noise and step size follows to weak order one. One step of SGD is
    `step_size` of its time, divided here into `substeps` Euler-Maruyama steps. `every` counts steps of SGD, as in
    `descend`, and so do the `step` and `diverged_at` of the result; the other arguments are those of `descend`, with
    lambda the `weight_decay`. `run.resume(time=5.0)` continues a run by 5 units of time.

    With an `optimiser` whose metric is S(v), such as `Adam`, the diffusion is that of (theta, v):

        d theta = -(S grad L + lambda theta) dt + sqrt(eta) S Sigma^(1/2) dW,   dv = (1 - b2)/eta (E g^2 - v) dt

    for steps without momentum; a momentum b1 that is kept fixed changes it by terms of higher order. v starts as after
    the first step of `descend`, at E g^2 with bias correction, which replaces 1 - b2 by (1 - b2)/(1 - b2^(1 + t/eta)),
    and at (1 - b2) E g^2 without. `optimiser_state={"v": ...}` is v after many steps, without bias correction.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> bowl = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([-1.0, 1.0]))
    >>> run = ut.diffuse(ut.Minibatch(bowl, batch_size=1), jnp.array(0.0), step_size=0.1, time=10.0, key=0,
    ...                  observe={"w": lambda w: w}, seeds=400)
    >>> print(run.time, abs(run.observed["w"][:, -1].var() - 0.05) < 0.02)  # the stationary variance is step_size/2
    [ 0. 10.] True
    """
    if isinstance(noise, Trajectory):
        raise TypeError("`diffuse(run, ...)`: a run continues with `run.resume(time=...)` now.")
    validate.finite_number("diffuse", "time", time)
    if callable(step_size):
        raise TypeError(
            f"{validate.quote('diffuse', step_size=validate.shown(step_size))}: `step_size` is a schedule; an SDE "
            "has one "
            "noise level: give a number."
        )
    eta = validate.as_float("diffuse", "step_size", step_size)
    if isinstance(getattr(noise, "problem", None), Population):
        raise TypeError(
            "`diffuse`: the drift of a `Population` is only known by Monte Carlo; fix a data set with "
            "`population.sample(key, count)` and build the noise on it."
        )
    validate.instance("diffuse", "noise", noise, AbstractNoise, "a noise, such as `Minibatch(problem, 1)`")
    substeps = validate.positive_integer("diffuse", "substeps", substeps)
    steps = steps_of_time("diffuse", time, eta / substeps)
    used = theory_optimiser("diffuse", optimiser, 0.0, weight_decay)
    run = drive.start_run(
        "diffuse",
        euler_noise(noise, substeps),
        params,
        step_size=np.asarray(step_size) / substeps,
        key=key,
        observe=observe,
        average=average,
        every=None if every is None else validate.positive_integer("diffuse", "every", every) * substeps,
        seeds=seeds,
        optimiser=euler_optimiser(noise, used if optimiser_state is None else used.after_start_up(), substeps),
        optimiser_state=optimiser_state,
        lanes_of=lane_width,
    )
    return drive.advance_run(replace(run, clock="time", substeps=substeps), steps, progress)
