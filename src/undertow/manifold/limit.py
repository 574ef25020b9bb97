"""The limiting diffusion of SGD after zero loss, on the clock slow_time = steps * step_size^2.

    dY = P sigma dW + 1/2 d2Phi[Sigma] dt,   Y(0) = Phi(x(0))     (zero_loss, Theorem 4.6)

Where the noise has no tangent part (label noise), this is a flow.
"""

from collections.abc import Callable, Collection

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import check_functions, check_observables, checked_call
from undertow._validate import KeyLike, Number
from undertow.manifold.drift import Parts, covariance_parts
from undertow.manifold.geometry import FiniteStep, Frame, known_rank, largest_flat, row_route
from undertow.manifold.label import label_amount, label_drift
from undertow.manifold.limit_motion import (
    blank_after,
    check_tangent_noise,
    motion_of,
    report_lost_rank,
    warn_null_drift,
)
from undertow.manifold.limit_regime import limit_regime, relative_error
from undertow.manifold.metric_limit import (
    Request,
    chosen_corrections,
    has_metric,
    metric_parts,
    metric_velocity_at,
    solve_metric,
)
from undertow.manifold.minimum import farthest, frame_of_minimum
from undertow.manifold.paths import TOLERANCE, PlainChart, Recorder, flow, solve_diffusion
from undertow.manifold.smoothness import kinks
from undertow.noise.base import AbstractNoise
from undertow.optimisers.base import AbstractOptimiser
from undertow.optimisers.transformation import theory_optimiser
from undertow.problem import AbstractProblem, Population, Regression
from undertow.trajectory import Trajectory

__all__ = ["Limit"]

STILL = 0.01
"""A direction whose curvature times the time of the run is below this does not relax, and counts as flat."""


class Limit(eqx.Module):
    """The limiting diffusion of SGD with a noise, on the manifold of minimisers of its problem.

    **Arguments:** any noise. Where its problem is a `Regression` that fits all of its data, no D x D matrix is formed.
    Elsewhere (residuals that are not zero, any `Problem`) the dense Hessian limits the model to 4,000 parameters. A
    loss with kinks (ReLU, absolute values) raises an error unless `piecewise=True`: the formulas hold between its
    kinks, but not at them.

    The limit is that of SGD, or of an `optimiser` with a metric S, such as `Adam`. With S frozen, phi = S^(-1/2) params
    moves as under SGD. The metric itself moves with the average v of squared gradients:

        d params/d slow_time = S^(1/2) {drift at phi} - (decay/eta) P_S params,   dv/d slow_time = kappa (E g^2 - v)

    with kappa = (1 - b2)/eta^2. For label noise the drift is -(c/4) P_S S grad tr(S H): with v in equilibrium Adam
    reduces tr diag(H)^(1/2), where SGD reduces tr H. `drift` and `solve` add corrections for a finite step size eta,
    unless `corrections=False`: v follows the fluctuations of the params in part, so that S is correlated with the
    gradients, and their covariance is that of finite steps. They extend the theory from (1 - b2) << eta lambda, lambda
    the least curvature of S^(1/2) H S^(1/2), to any ratio of the two while 1 - b2 is small.

    Directions of a curvature below `resolution` count as tangent to the manifold (None: below the precision of the
    params, and below 0.01/time where `solve` knows the time). There must be a gap between the curvatures on both sides
    of it, which the printed result shows; a problem without a gap raises an error. `ut.average` needs no gap.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> # u v = 1: label noise moves along the hyperbola to the least trace of the Hessian, u^2 + v^2, at u = v = 1
    >>> task = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.array([1.0]), jnp.array([1.0]))
    >>> limit = ut.Limit(ut.LabelNoise(task, strength=1.0))
    >>> path = limit.solve(jnp.array([2.0, 0.5]), slow_time=20.0, observe={"p": lambda p: p})
    >>> print(path.observed["p"][-1].round(3), path.slow_time[-1])
    [1. 1.] 20.0
    """

    noise: AbstractNoise
    piecewise: bool = eqx.field(static=True)
    resolution: float | None = eqx.field(static=True)
    optimiser: AbstractOptimiser

    @checked_call("Limit")
    def __init__(
        self,
        noise: AbstractNoise,
        piecewise: bool = False,
        resolution: Number | None = None,
        optimiser: AbstractOptimiser | None = None,
    ):
        validate.instance("Limit", "noise", noise, AbstractNoise, "a noise, such as `LabelNoise(task)`")
        if isinstance(noise.problem, Population):
            raise TypeError(
                "`Limit(noise)`: a `Population` has no manifold of exact minimisers; fix a data set with "
                "`population.sample(key, count)`."
            )
        self.noise = noise
        self.piecewise = validate.flag("Limit", "piecewise", piecewise)
        self.resolution = None if resolution is None else validate.as_float("Limit", "resolution", resolution)
        self.optimiser = theory_optimiser("Limit", optimiser)

    def drift(
        self,
        params: PyTree,
        *,
        finite_step: Number | None = None,
        state: PyTree = None,
        step_size: Number | None = None,
        corrections: bool | Collection[str] = True,
    ) -> PyTree:
        """Return 1/2 d2Phi[Sigma(params)], like params. Label noise uses a shorter formula than `parts`.

        Params that are not on a smooth manifold of minimisers (saddles, crossings, a Hessian that is zero) raise an
        error. Inside `jax.jit` only the residuals of a `Regression` with fewer equations than parameters are checked:
        the drift is NaN where they are not zero. A `Problem` with the same loss has no such restriction.

        `finite_step` is that of `parts`. For an optimiser with a metric, `state` is the dict `{"v": ...}` (None: v =
        E g^2 at params). With a `step_size` the result includes weight decay and, unless `corrections=False`,
        corrections for that step size.
        """
        validate.params_of_floats("Limit.drift", params)
        chosen_corrections("Limit.drift", corrections)
        _step_size(step_size, None, "Limit.drift")
        params = trees.in_default_precision(params)
        if has_metric(self.optimiser):
            _check_kinks(self, params)
            request = _request("Limit.drift", state, step_size, finite_step, True, corrections)
            return metric_velocity_at(self, params, request)
        eta = _finite_step("Limit.drift", finite_step)
        if isinstance(eta, float) and self.resolution is None and row_route(self.noise.problem, params):
            short = _label(self, params)
            if short is not None and validate.concrete(short[1]) and np.isfinite(float(short[1])):
                drift, far, size = short
                if float(far) <= farthest(far.dtype) * (1 + float(size)):
                    return drift
        _check_kinks(self, params)
        return self._parts("Limit.drift", params, eta).total

    def parts(self, params: PyTree, *, finite_step: Number | None = None, state: PyTree = None) -> Parts:
        """Return the drift as its three parts: tangent compensation, normal regularisation, mixed.

        `finite_step=eta` takes the covariance across the manifold from HX + XH - eta HXH = Sigma instead of
        HX + XH = Sigma. On the motor (claim `motor-speed`) this is nearly the whole effect of a finite step to first
        order. It neglects the change of curvature and noise over the width of the fluctuations. With a metric the
        parts are those of small steps, for the `state` of `drift`.
        """
        validate.params_of_floats("Limit.parts", params)
        params = trees.in_default_precision(params)
        _check_kinks(self, params)
        if has_metric(self.optimiser):
            return metric_parts(self, params, _request("Limit.parts", state, None, finite_step, True, False))
        return self._parts("Limit.parts", params, _finite_step("Limit.parts", finite_step))

    def _parts(self, function: str, params: PyTree, eta: FiniteStep) -> Parts:
        frame = frame_of_minimum(function, self.noise.problem, params, self.resolution)
        _check_stability(function, eta, frame)
        return Parts(*_halved_parts(self.noise, frame, eta))

    @checked_call("Limit.solve", time="slow_time", looks="num_saves")
    def solve(
        self,
        params: PyTree,
        *,
        slow_time: Number,
        key: KeyLike | None = None,
        observe: dict[str, Callable[[PyTree], PyTree]] | None = None,
        seeds: int | None = None,
        finite_step: Number | None = None,
        step_size: Number | None = None,
        state: PyTree = None,
        quasi_static: bool = False,
        corrections: bool | Collection[str] = True,
        num_saves: int = 20,
        steps: int = 2000,
        tolerance: float | None = None,
    ) -> Trajectory:
        """Solve the limiting diffusion from a point of the manifold up to `slow_time`.

        A flow (no tangent noise) takes adaptive Runge-Kutta steps of relative and absolute error `tolerance`: by
        default 1e-6, and 1e-4 for a flow of (params, v), whose error at a finite step size is larger than that. A
        diffusion takes at least `steps` Euler steps, and shorter steps where the smallest curvature across the manifold
        changes fast. Each step ends with a Newton step back to the manifold. `observe` is recorded at 0 and after each
        of `num_saves` equal intervals, together with "distance", the distance of the solution to the manifold. A
        diffusion needs a `key`; `seeds` is the number of independent solutions.

        The limit is that of small steps; `finite_step=eta` takes the covariance of steps of that size, as in `parts`.
        With it, or with the `step_size` of SGD, the result has the clocks `step` and `time`, and its `regime` has an
        estimate of the relative error at that step size: for a flow, the distance of its end to that of the averaged
        flow (`ut.average`), over the distance from its start to its end.

        An optimiser with a metric, such as `Adam`, needs its `step_size`. v starts at E g^2, or at that of `state`, as
        after many steps, without bias correction, and is observed as "v". `quasi_static=True` keeps it at E g^2, which
        is faster where kappa = (1 - b2)/step_size^2 is large. `corrections=False` leaves out the corrections for a
        finite step size, whose sizes are in the `regime`; `corrections=("finite_step",)` or `("fluctuating_metric",)`
        has one of them.

        The limit ends where the Hessian loses rank, for instance where two manifolds cross. A flow that reaches such a
        point before `slow_time` raises an error. A run of a diffusion stops there: it is marked in `diverged`,
        `diverged_at` is the slow time at which it stopped (-1 for the other runs), its later observations are NaN, its
        `params` are those at which it stopped, and a warning gives the number of such runs.
        """
        problem = self.noise.problem
        validate.params_of_floats("Limit.solve", params)
        params = trees.in_default_precision(params)
        validate.finite_number("Limit.solve", "slow_time", slow_time)
        num_saves = validate.positive_integer("Limit.solve", "num_saves", num_saves)
        steps = validate.positive_integer("Limit.solve", "steps", steps)
        seeds = _check_options(key, seeds, tolerance, quasi_static, corrections)
        observe = check_functions("Limit.solve", "observe", observe)
        check_observables("Limit.solve", "observe", observe, params)
        _check_kinks(self, params)
        if has_metric(self.optimiser):
            request = _request("Limit.solve", state, step_size, finite_step, quasi_static, corrections)
            return solve_metric(
                self, params, request, float(slow_time), key, observe, seeds, num_saves, steps, tolerance
            )
        eta = _finite_step("Limit.solve", finite_step)
        step = _step_size(step_size, finite_step)
        frame = frame_of_minimum("Limit.solve", problem, params, self._resolution(step, float(slow_time)))
        _check_stability("Limit.solve", eta, frame)
        motion = motion_of(self.noise, frame)
        if motion == "none":
            warn_null_drift(self.noise)
        times = np.linspace(0.0, float(slow_time), num_saves + 1)
        gaps = jax.device_put(np.diff(times))
        rank = known_rank(frame)
        largest = jax.device_put(np.max(np.asarray(frame.curvature)))
        recorder = Recorder(observe, problem, largest, rank, frame.least_squares, frame.unravel)
        if motion == "diffusion":
            chart = PlainChart(self.noise, eta, recorder)
            ends, records, lost = solve_diffusion(chart, frame.point, None, key, seeds, gaps, recorder, steps)
        else:
            ends, records, lost = flow(
                self.noise, frame, gaps, eta, recorder, jax.device_put(TOLERANCE if tolerance is None else tolerance)
            )
            check_tangent_noise(self.noise, frame, recorder.frame_of(ends), motion)
            if seeds is not None:
                repeat = lambda x: jnp.broadcast_to(x[None], (seeds, *x.shape))
                ends, records, lost = jax.tree.map(repeat, (ends, records, lost))
        if np.isfinite(np.asarray(lost)).any():
            report_lost_rank(np.asarray(lost, float), rank, motion)
        return self._trajectory(frame, times, step, motion, seeds, ends, records, np.asarray(lost, float))

    def _trajectory(
        self,
        frame: Frame,
        times: np.ndarray,
        step: float | None,
        motion: str,
        seeds: int | None,
        ends: Array,
        records: PyTree,
        lost: np.ndarray,
    ) -> Trajectory:
        """Return the solution with its regime; `lost` are the slow times at which runs lost rank, else inf."""
        diverged, after = np.asarray(np.isfinite(lost)), times >= lost[..., None]
        records = jax.tree.map(lambda x: blank_after(np.asarray(x), after) if after.any() else np.asarray(x), records)
        unravel = jax.vmap(frame.unravel) if seeds is not None else frame.unravel
        error = None
        if step is not None and times[-1] > 0 and motion == "flow" and not diverged.any():
            end = ends if seeds is None else ends[0]
            error = relative_error(self.noise, frame.unravel(frame.point), end, step, float(times[-1]))
        flat = float(largest_flat(self.noise.problem, frame))
        return Trajectory(
            params=unravel(ends),
            observed=records,
            step=np.full(len(times), np.nan) if step is None else times / step**2,
            time=np.full(len(times), np.nan) if step is None else times / step,
            slow_time=times,
            diverged=diverged,
            diverged_at=np.where(diverged, lost, -1.0),
            seeds=seeds,
            clock="slow_time",
            facts={"made_by": "Limit.solve", "noise": type(self.noise).__name__, "motion": motion},
            regime=limit_regime(frame, flat, step, float(times[-1]), error),
        )

    def _resolution(self, step_size: float | None, slow_time: float) -> float | None:
        """Return the curvature below which directions count as flat: as given, or STILL/time at a known step size."""
        if self.resolution is not None or step_size is None or not slow_time > 0:
            return self.resolution
        return STILL * step_size / slow_time


def _request(
    function: str,
    state: PyTree,
    step_size: Number | None,
    finite_step: Number | None,
    quasi_static: bool,
    corrections: bool | Collection[str],
) -> Request:
    if finite_step is not None:
        raise ValueError(
            f"{validate.quote(function, finite_step=finite_step)}: an optimiser with a metric takes `step_size=`, and "
            "`corrections=True` has the covariance of finite steps."
        )
    names = chosen_corrections(function, corrections)
    return Request(function, state, _step_size(step_size, None, function), quasi_static, names)


def _check_options(
    key: KeyLike | None,
    seeds: int | None,
    tolerance: float | None,
    quasi_static: bool,
    corrections: bool | Collection[str],
) -> int | None:
    """Check the options of `solve` that only some motions need, and return the number of seeds."""
    if key is not None:
        validate.as_key("Limit.solve", key)
    if tolerance is not None:
        validate.finite_number("Limit.solve", "tolerance", tolerance, positive=True)
    validate.flag("Limit.solve", "quasi_static", quasi_static)
    chosen_corrections("Limit.solve", corrections)
    return None if seeds is None else validate.positive_integer("Limit.solve", "seeds", seeds)


def _finite_step(function: str, value: Number | None) -> FiniteStep:
    """Return the finite step as an array; None (the exact limit) as the float 0.0, which selects shorter formulas."""
    if value is None:
        return 0.0
    validate.finite_number(function, "finite_step", value)
    return jnp.asarray(value, jnp.result_type(float))


def _step_size(step_size: Number | None, finite_step: Number | None, function: str = "Limit.solve") -> float | None:
    """Return the step size of SGD, where one is given by either argument."""
    name, value = ("finite_step", finite_step) if step_size is None else ("step_size", step_size)
    return None if value is None else validate.as_float(function, name, value, positive=True)


def _check_stability(function: str, eta: FiniteStep, frame: Frame) -> None:
    """Raise where steps of this size diverge across the manifold, so that there is no stationary covariance."""
    if not isinstance(eta, float) and validate.concrete(eta) and validate.concrete(frame.point):
        largest = float(jnp.max(frame.curvature))
        if float(eta) * largest >= 2:
            raise ValueError(
                f"{validate.quote(function, finite_step=float(eta))}: SGD diverges at this step size, because the "
                f"largest curvature across the manifold is {largest:.3g}; give less than {2 / largest:.3g}."
            )


def _check_kinks(limit: Limit, params: PyTree) -> None:
    """Raise where the loss has kinks, unless `piecewise=True`."""
    if not limit.piecewise:
        _smooth(limit.noise.problem, params)


@eqx.filter_jit
def _smooth(problem: AbstractProblem, params: PyTree) -> None:
    """Raise where the loss has kinks. The check runs while tracing, once per problem."""
    names = kinks(problem, params)
    if names:
        raise ValueError(
            f"`Limit`: the loss has kinks ({', '.join(names)}), and the limit needs its derivatives, which exist "
            "almost everywhere: use a smooth activation, or `Limit(noise, piecewise=True)`."
        )


@eqx.filter_jit
def _label(limit: Limit, params: PyTree) -> tuple[PyTree, Array, Array] | None:
    """Return the drift of label noise, the distance of `label_drift` and |params|; None for another noise."""
    noise = limit.noise
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    amount = label_amount(noise.covariance(params), noise.problem)
    if amount is None or not isinstance(noise.problem, Regression):
        return None
    _check_kinks(limit, params)
    drift, far = label_drift(noise.problem, flat, unravel, amount)
    return unravel(drift), far, jnp.linalg.norm(flat)


@eqx.filter_jit
def _halved_parts(noise: AbstractNoise, frame: Frame, eta: FiniteStep) -> tuple[PyTree, ...]:
    covariance = noise.covariance(frame.unravel(frame.point))
    return tuple(frame.unravel(part / 2) for part in covariance_parts(noise.problem, frame, covariance, eta))
