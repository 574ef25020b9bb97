"""The SDE of SGD: d theta = -grad L dt + sqrt(step_size) Sigma^(1/2) dW, by Euler-Maruyama on the same engine."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.covariance import Projected
from undertow.dynamics import drive
from undertow.noise.base import AbstractNoise, normals, normals_now
from undertow.problem import AbstractProblem, Population
from undertow.trajectory import Trajectory

__all__ = ["Gaussian", "diffuse"]


class Gaussian(AbstractNoise):
    """The Gaussian twin of a noise: the same mean and `inflation^2` times the same covariance, drawn by its `root`.

    An Euler-Maruyama step of length dt of the SDE of SGD with step eta is an SGD step of size dt with this noise and
    inflation sqrt(eta/dt).

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.dynamics.diffuse import Gaussian
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([0.0, 4.0]))
    >>> print(Gaussian(ut.Minibatch(problem, 1), jnp.array(1.0)).covariance(jnp.array(2.0)).trace())
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
        return normals(key, count, None if like is None else self._white(like))

    def gradient(self, params: PyTree, slice: PyTree) -> PyTree:
        sigma = self.noise.covariance(params)
        disturbance = sigma.root(normals_now(slice, sigma.white()))
        return trees.add(self.noise.mean(params), trees.scale(self.inflation, disturbance))

    def covariance(self, params: PyTree) -> Projected:
        return Projected(self.noise.covariance(params), lambda v: trees.scale(self.inflation, v))

    def mean(self, params: PyTree) -> PyTree:
        return self.noise.mean(params)

    def check(self, params: PyTree) -> None:
        self.noise.check(params)

    def _white(self, params: PyTree) -> PyTree:
        def blank(p: PyTree) -> PyTree:
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.noise.covariance(p).white())

        return jax.eval_shape(blank, params)


def diffuse(
    noise: AbstractNoise | Trajectory,
    params: PyTree | Callable | None = None,
    *,
    step_size: Any = None,
    time: Number,
    key: KeyLike | None = None,
    observe: dict[str, Callable[[PyTree], PyTree]] | None = None,
    average: dict[str, Callable[[PyTree], PyTree]] | None = None,
    every: int | None = None,
    seeds: int | None = None,
    weight_decay: Any = 0.0,
    substeps: int = 4,
    progress: Callable[[int, int], Any] | bool | None = None,
    lane_width: int | None = None,
) -> Trajectory:
    """Solves d theta = -(grad L + lambda theta) dt + sqrt(step_size) Sigma(theta)^(1/2) dW up to `time`.

    This is the diffusion that SGD with the same noise and step size follows to weak order one; one step of SGD is
    `step_size` of its time, divided here into `substeps` Euler-Maruyama steps. `every` counts steps of SGD, as in
    `descend`, and so do the `step` and `diverged_at` of the result; the other arguments are those of `descend`.
    A run can be continued: `diffuse(run, time=5.0)` adds 5 units of time.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> bowl = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([-1.0, 1.0]))
    >>> run = ut.diffuse(ut.Minibatch(bowl, batch_size=1), jnp.array(0.0), step_size=0.1, time=10.0, key=0,
    ...                  observe={"w": lambda w: w}, seeds=400)
    >>> print(run.time, abs(run.observed["w"][:, -1].var() - 0.05) < 0.02)  # the stationary variance is step_size/2
    [ 0. 10.] True
    """
    validate.finite_number("diffuse", "time", time)
    if isinstance(noise, Trajectory):
        given = (params, step_size, key, observe, average, every, seeds, lane_width)
        changed = any(value is not None for value in given) or weight_decay != 0.0
        run = drive.continued("diffuse", noise, changed)
        return drive.go_on(run, _steps(time, run.step_size), progress, clock="time")
    if callable(step_size):
        raise TypeError("`diffuse`: `step_size` is a schedule; an SDE has one noise level: give a number.")
    validate.finite_number("diffuse", "step_size", step_size)
    if isinstance(getattr(noise, "problem", None), Population):
        raise TypeError(
            "`diffuse`: the drift of a `Population` is only known by Monte Carlo; fix a data set with "
            "`population.sample(key, count)` and build the noise on it."
        )
    if not isinstance(noise, AbstractNoise):
        raise TypeError(f"`diffuse(noise, ...)`: got a {type(noise).__name__}; give a noise.")
    substeps = validate.positive_integer("diffuse", "substeps", substeps)
    steps = _steps(time, float(step_size) / substeps)
    run = drive.begin(
        "diffuse",
        Gaussian(noise, jnp.sqrt(jnp.asarray(substeps, jnp.result_type(float)))),
        params,
        step_size=step_size / substeps,
        key=key,
        observe=observe,
        average=average,
        every=None if every is None else validate.positive_integer("diffuse", "every", every) * substeps,
        seeds=seeds,
        momentum=0.0,
        weight_decay=weight_decay,
        lane_width=lane_width,
    )
    return drive.go_on(replace(run, substeps=substeps), steps, progress, clock="time")


def _steps(time: Number, dt: float) -> int:
    """Euler-Maruyama steps that cover `time`, rounded up."""
    if dt == 0 or time == 0:
        raise ValueError(f"`diffuse(time={time})`: `time` and `step_size` must be above 0 to move at all.")
    return max(1, math.ceil(float(time) / dt - 1e-6))
