"""The averaged flow: the mean motion of SGD at a finite step size, from any start."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import check_functions, check_observables, checked_call
from undertow._validate import Number
from undertow.dynamics.simulated_error import SIGNIFICANT, SimulatedError, simulate_error
from undertow.manifold.averaged import DENSE_LIMIT, TOLERANCE, Path, solve_average, velocity
from undertow.manifold.fluctuations import CLOSURES, Closure, image_route
from undertow.manifold.metric_averaged import (
    AveragedMotion,
    correction_sizes,
    least_relaxed,
    shift_of,
    solve_metric_average,
)
from undertow.manifold.metric_limit import check_names, has_metric, start_value
from undertow.manifold.next_order import NextOrder, cheap, next_order, too_large
from undertow.noise.base import AbstractNoise
from undertow.optimisers.base import AbstractOptimiser, first_squares
from undertow.optimisers.sgd import SGD
from undertow.optimisers.transformation import theory_optimiser
from undertow.problem import Population
from undertow.regime import Regime, SmallParameter
from undertow.trajectory import Trajectory

__all__ = ["average"]

Error = SimulatedError | NextOrder | str | None
"""Where the error comes from; a text is the note on a missing estimate."""

MEASURE = "Give `check_seeds=64` to measure the error by 64 runs of SGD."


@checked_call("average")
def average(
    noise: AbstractNoise,
    params: PyTree,
    *,
    step_size: Number,
    time: Number,
    observe: dict[str, Callable[[PyTree], PyTree]] | None = None,
    num_saves: int = 20,
    closure: Closure = "averaged_noise",
    tolerance: float | None = None,
    max_steps: int = 10_000,
    estimate_error: bool | None = None,
    check_seeds: int | None = None,
    optimiser: AbstractOptimiser | None = None,
    optimiser_state: PyTree = None,
) -> Trajectory:
    """Predict the mean of SGD with this noise and step size: solve the averaged flow up to `time` = steps * step_size.

        d theta/dt = (1 + (eta/2) H) F,     F = -grad L - (eta/2) d3L[X]
        H X + X H - eta H X H = Sigma + (eta/2) Sigma''[X]

    F is the mean step of SGD over eta, and eta X the covariance of SGD around its mean. The flow needs no manifold of
    minimisers, no zero loss and no sharp rank of the Hessian H, and it starts anywhere. One solution replaces the mean
    over many seeds of `descend`.

    **Arguments:**

    - `noise`, `params`, `step_size`: those of `descend`.
    - `time`: the length of the run, steps * step_size.
    - `observe`: functions of params. Each f is recorded at 0 and after each of `num_saves` equal intervals, as `f` at
      the mean of SGD, as `excess_f` = (eta/2) tr(f'' X), the effect of the fluctuations, and as `mean_f`, the sum of
      both, which predicts the mean of f over seeds of SGD. The loss is always observed.
    - `closure`: the equation for X. "averaged_noise" is the one above. "finite_step" leaves out the term Sigma''[X].
      "small_step" leaves out both terms with eta and the factor with H, and for label noise the minibatch noise as
      well, which gives the flow of L + (eta c/4) tr H.
    - `tolerance`: the relative and absolute error per step of the solver (None: 1e-5). The error of the whole solution
      is up to thirty times larger, relative to the length of the path. Give a smaller tolerance where the params are
      far below 1.
    - `max_steps`: the largest number of steps of the solver.
    - `optimiser`: an optimiser with a metric S, such as `Adam` (None: SGD). The flow is then that of (params, v), with
      F = -S grad L - (eta/2) S d3L[X] - decay params, X in the metric with the decay added to the curvatures, and
      dv/dt = (1 - b2)/eta (E g^2 - v). Unless the closure is "small_step", F has the correction for a metric that
      follows the fluctuations (`Limit`), and S H in place of H is multiplied by (1 + b1)/(1 - b1). v starts as after
      the first step of `descend`: at E g^2 with bias correction, which replaces 1 - b2 by
      (1 - b2)/(1 - b2^(1 + t/eta)), and at (1 - b2) E g^2 without. The momentum starts at its mean value.
      `optimiser_state={"v": ...}` is v after many steps, without bias correction. v is observed as "v", and the regime
      has the sizes of the corrections.

    A `Regression` with fewer equations than parameters is solved in the image of J', with H = J'J/n. Any other problem
    needs the Hessian at every step and has at most 500 parameters.

    **Returns** a `Trajectory` whose `regime` has the small parameters of the theory. Where the solver fails, the run
    counts as diverged.

    `regime.estimated_error` is the distance of the mean of SGD to the end of the flow, over the distance from the start
    to the end of the flow. It comes from the next order in the step size: the first three cumulants of SGD, followed
    from the start. `estimate_error=True` asks for it (at most 100 parameters and 1000 samples), `False` leaves it out.
    By default it is made where it takes seconds: for at most 41 parameters, and fewer with many samples (D^3 n at most
    3,000,000, and with label noise 2 D^3 n). It is None where the predicted fluctuations grow beyond the parameters. A
    note of the regime has the reason for None.

    With `check_seeds` runs of SGD, the error is measured. It is None where the runs cannot resolve it and where one of
    them diverges; a note of the regime then has the reason and, in the first case, an upper bound. The runs have a
    fixed key.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> # u v = 1, from a start off the manifold: label noise balances u and v
    >>> task = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.array([1.0]), jnp.array([1.0]))
    >>> flow = ut.average(ut.LabelNoise(task, 0.5), jnp.array([2.0, 0.1]), step_size=0.1, time=400.0,
    ...                   observe={"p": lambda p: p})
    >>> print(flow.observed["p"][-1].round(2), f"{flow.observed['mean_loss'][-1]:.2f}")
    [0.99 0.99] 0.01
    """
    _check(noise, params, closure)
    params = trees.in_default_precision(params)
    eta = validate.as_float("average", "step_size", step_size, positive=True)
    length = validate.as_float("average", "time", time, positive=True)
    num_saves = validate.positive_integer("average", "num_saves", num_saves)
    max_steps = validate.positive_integer("average", "max_steps", max_steps)
    _check_error_options(optimiser, estimate_error, check_seeds)
    tolerance = TOLERANCE if tolerance is None else tolerance
    validate.finite_number("average", "tolerance", tolerance, positive=True)
    observe = _check_observe(check_functions("average", "observe", observe))
    check_observables("average", "observe", observe, params)
    times = np.linspace(0.0, length, num_saves + 1)
    reason = None if check_seeds is not None else _no_estimate(noise, params, estimate_error, optimiser)
    floats = jnp.result_type(float)
    used = theory_optimiser("average", optimiser)
    if has_metric(used):
        return _average_metric(noise, params, used, optimiser_state, eta, times, observe, closure, tolerance, max_steps)
    path = solve_average(
        noise,
        params,
        jax.device_put(np.asarray(times, floats)),
        jax.device_put(np.asarray(eta, floats)),
        observe,
        closure,
        jax.device_put(np.asarray(tolerance, floats)),
        max_steps,
    )
    at_start = lambda kind: velocity(noise, *ravel_pytree(params), jnp.asarray(times[1]), jnp.asarray(eta), kind)
    _check_velocity(path, at_start, closure)
    error = reason
    if check_seeds is not None:
        steps = max(1, round(length / eta))
        error = simulate_error(noise, params, np.asarray(path.points[-1]), eta, steps, check_seeds)
    elif reason is None and bool(np.isfinite(path.points).all()):
        error = next_order(noise, params, path.points[-1], eta, length)
    return _trajectory(noise, params, path, times, eta, closure, error)


def _no_estimate(
    noise: AbstractNoise, params: PyTree, wanted: bool | None, optimiser: AbstractOptimiser | None
) -> str | None:
    """Return the note on a missing estimate of the error; None where it is made."""
    if optimiser is not None:
        return "No estimate of the error: it is known for SGD alone."
    if wanted is False:
        return "Give `estimate_error=True` for an estimate of the error, or `check_seeds=64` to measure it."
    reason = too_large(noise, params)
    if reason is not None:
        return f"No estimate of the error from the next order: {reason}. {MEASURE}"
    if wanted is None and not cheap(noise, params):
        return (
            "No estimate of the error by default, because it takes longer than the flow with "
            f"{trees.count(params)} parameters: give `estimate_error=True`, or `check_seeds=64` to measure it."
        )
    return None


def _check_error_options(
    optimiser: AbstractOptimiser | None, estimate_error: bool | None, check_seeds: int | None
) -> None:
    if estimate_error is not None:
        validate.flag("average", "estimate_error", estimate_error)
    if optimiser is not None and (check_seeds is not None or estimate_error):
        name, value = ("check_seeds", check_seeds) if check_seeds is not None else ("estimate_error", True)
        raise ValueError(
            f"{validate.quote('average', **{name: value})}: the error is known for SGD alone; leave `{name}` out and "
            "compare with `descend(..., optimiser=optimiser)`."
        )
    if check_seeds is not None:
        validate.positive_integer("average", "check_seeds", check_seeds, least=2)


def _average_metric(
    noise: AbstractNoise,
    params: PyTree,
    optimiser: AbstractOptimiser,
    state: PyTree,
    eta: float,
    times: np.ndarray,
    observe: dict[str, Callable[[PyTree], PyTree]],
    closure: Closure,
    tolerance: float,
    max_steps: int,
) -> Trajectory:
    """Solve the averaged flow of an optimiser with a metric."""
    floats = jnp.result_type(float)
    v = start_value("average", noise, optimiser, params, state, "optimiser_state")
    check_names("average", observe, v)
    unravel = ravel_pytree(params)[1]
    used = (optimiser if state is None else optimiser.after_start_up()).prepared()
    if state is None and v is not None:
        v = trees.ravel(first_squares(used, params, unravel(v)))
    motion = AveragedMotion(noise, used, jnp.asarray(eta, floats), unravel, closure, shift_of(v))
    path = solve_metric_average(
        motion, params, v, jnp.asarray(times, floats), observe, jnp.asarray(tolerance, floats), max_steps
    )
    at_start = lambda kind: replace(motion, closure=kind).velocity(motion.state(params, v), jnp.asarray(times[1]))
    _check_velocity(path, at_start, closure)
    run = _trajectory(noise, params, path, times, eta, closure, None)
    if run.diverged or run.regime is None:
        return run
    end = jnp.asarray(times[-1], floats)  # an array: a number would be compiled into the program
    largest = optimiser.regime_of_largest
    curvature = float(np.max(path.records.sharpness) if largest else least_relaxed(motion, params, v, end))
    parameters, notes = run.regime.parameters + optimiser.regime(eta, curvature).parameters, ()
    if closure != "small_step":
        last = None if v is None else jax.tree.map(lambda x: x[-1], path.observed["v"])
        finite, gain = (float(x) for x in correction_sizes(motion, path.points[-1], last, end))
        sizes = (
            SmallParameter(
                "finite step / drift", finite, None, "change of the drift by noise at a finite step, at the end"
            ),
            SmallParameter("metric / drift", gain, None, "gain by a metric that fluctuates, over the drift by noise"),
        )
        parameters += sizes if np.isfinite([finite, gain]).all() else ()
        if isinstance(optimiser, SGD) and optimiser.nesterov:
            notes = ("The corrections for a finite step size are those of heavy-ball momentum, not Nesterov's.",)
    return replace(
        run, regime=Regime(parameters, None, notes), facts={**run.facts, "optimiser": type(optimiser).__name__}
    )


def _check_velocity(path: Path, at_start: Callable[[Closure], PyTree], closure: Closure) -> None:
    """Raise where the solver failed at once, and the velocity of a closure is not finite at the start.

    `at_start` is evaluated for a positive age: at the age 0 there are no fluctuations, and no derivative counts.
    """
    finite = lambda kind: all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(at_start(kind)))
    if np.isfinite(path.points[1]).all() or finite(closure):
        return
    others = [kind for kind in CLOSURES if finite(kind)]  # with fewer derivatives of the noise, and those of the loss
    raise ValueError(
        f"`average`: a derivative of the {'noise' if others else 'loss'} is not finite at these params, as that of "
        "sqrt(x) at 0, so that the flow has no velocity there; start at another point"
        + (f', or give `closure="{others[-1]}"`, which does not need that derivative.' if others else ".")
    )


def _trajectory(
    noise: AbstractNoise,
    params: PyTree,
    path: Path,
    times: np.ndarray,
    eta: float,
    closure: Closure,
    error: Error,
) -> Trajectory:
    points = np.asarray(path.points)
    finite = np.isfinite(points).all(axis=1)
    good = len(times) if finite.all() else int(np.argmin(finite))
    after = np.arange(len(times)) >= good
    observed = jax.tree.map(lambda x: np.asarray(x), path.observed)
    if after.any():
        observed = jax.tree.map(lambda x: np.where(after.reshape(-1, *[1] * (x.ndim - 1)), np.nan, x), observed)
    return Trajectory(
        params=trees.unravel(points[good - 1], params),
        observed=observed,
        step=times / eta,
        time=times,
        slow_time=times * eta,
        diverged=np.asarray(after.any()),
        diverged_at=np.asarray(times[good] / eta if after.any() else -1.0),
        seeds=None,
        clock="time",
        facts={
            "made_by": "average",
            "noise": type(noise).__name__,
            "step_size": eta,
            "closure": closure,
            "solver_steps": int(path.steps),
        },
        regime=_regime(path, good, points, times, eta, error, not image_route(noise.problem, points.shape[1])),
    )


def _error_of(error: Error, moved: float) -> tuple[float | None, tuple[str, ...]]:
    """Return the relative error, and a note where it is not known."""
    if error is None:
        return None, ()
    if isinstance(error, str):
        return None, (error,)
    if not moved > 0:
        return None, ("No estimate of the error: the flow does not move.",)
    if isinstance(error, NextOrder):
        if error.distance is not None:
            return error.distance / moved, ("The error is estimated from the next order in the step size.",)
        too_strong = "its fluctuations grow beyond the parameters"
        return None, (f"No estimate of the error from the next order: {too_strong}. {MEASURE}",)
    if error.diverged:
        return None, (f"No estimate of the error: {error.diverged} of {error.seeds} runs of SGD diverged.",)
    if error.significant:
        return error.distance / moved, (f"The error is measured by {error.seeds} runs of SGD.",)
    bound = 100 * (error.distance + SIGNIFICANT * error.standard_error) / moved
    return None, (f"The error is below {bound:.2g}%, which {error.seeds} runs of SGD cannot resolve.",)


def _regime(
    path: Path, good: int, points: np.ndarray, times: np.ndarray, eta: float, error: Error, dense: bool
) -> Regime:
    """Return the small parameters of the theory at their largest values along the path, and the simulated error.

    `dense`: the whole Hessian is known, so that its negative curvatures are.
    """
    records = jax.tree.map(lambda x: np.asarray(x)[:good], path.records)
    size = np.maximum(np.linalg.norm(points[:good], axis=1), np.finfo(points.dtype).tiny)
    largest = lambda values: float(np.max(values))
    parameters = [
        SmallParameter("eta * lambda_max", eta * largest(records.sharpness), 2.0, "gradient descent diverges above 2"),
        SmallParameter("growth", largest(records.growth), 1.0, "the second moments of SGD diverge above 1"),
        SmallParameter(
            "spread / |params|", largest(records.spread / size), 0.3, "distance of SGD to its mean, relative"
        ),
        SmallParameter(
            "slow spread / |params|",
            largest(records.slow_spread / size),
            0.3,
            "its part along flat directions, in which runs move apart",
        ),
    ]
    if isinstance(error, SimulatedError):
        meaning = f"distance of {error.seeds} runs of SGD to their mean at the end, relative"
        parameters.append(SmallParameter("simulated spread / |params|", error.spread / float(size[-1]), 0.3, meaning))
    if isinstance(error, NextOrder):
        meaning = "distance of SGD to its mean to the next order, relative"
        parameters.append(SmallParameter("next spread / |params|", error.spread, 0.3, meaning))
    if dense:
        apart = float(np.trapezoid(np.maximum(-records.lowest, 0), times[:good]))
        meaning = "integral over time: the logarithm by which runs move apart"
        parameters.append(SmallParameter("negative curvature", apart, 1.0, meaning))
    estimated_error, notes = None, ()
    if good == len(times):
        estimated_error, notes = _error_of(error, float(np.linalg.norm(points[-1] - points[0])))
    return Regime(tuple(parameters), estimated_error, notes)


def _check(noise: AbstractNoise, params: PyTree, closure: str) -> None:
    validate.instance("average", "noise", noise, AbstractNoise, "a noise, such as `LabelNoise(task)`")
    validate.params_of_floats("average", params)
    validate.one_of("average", "closure", closure, CLOSURES)
    if isinstance(noise.problem, Population):
        raise TypeError(
            "`average`: the gradient of a `Population` is only known by Monte Carlo; fix a data set with "
            "`population.sample(key, count)` and build the noise on it."
        )
    noise.check(params)
    size = trees.count(params)
    if not image_route(noise.problem, size) and size > DENSE_LIMIT:
        raise ValueError(
            f"`average`: the problem has {size} parameters and is not a `Regression` with fewer equations than "
            f"parameters; without that structure the limit is {DENSE_LIMIT}: use a smaller model or fewer samples."
        )


def _check_observe(observe: dict[str, Callable]) -> dict[str, Callable]:
    names = {"loss", *observe}
    own = {"loss", *(f"{prefix}_{name}" for prefix in ("excess", "mean") for name in names)}
    taken = sorted(own & set(observe))
    if taken:
        raise ValueError(f"`average(observe=...)`: {taken[0]!r} is recorded by `average` itself; use another name.")
    return observe
