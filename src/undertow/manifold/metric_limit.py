"""`Limit` for an optimiser with a metric: its drift, the checks of its state, and its solution."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.manifold.drift import Parts, covariance_parts
from undertow.manifold.fluctuating_metric import metric_at
from undertow.manifold.geometry import Frame, known_rank, largest_flat
from undertow.manifold.limit_motion import (
    blank_after,
    check_tangent_noise,
    motion_of,
    report_lost_rank,
    warn_null_drift,
)
from undertow.manifold.limit_regime import limit_regime
from undertow.manifold.metric import RescaledNoise
from undertow.manifold.metric_flow import CORRECTIONS, TOLERANCE_WITH_STATE, MetricMotion, Velocity, metric_flow
from undertow.manifold.minimum import frame_of_minimum
from undertow.manifold.paths import TOLERANCE, Recorder, solve_diffusion
from undertow.noise.base import AbstractNoise, second_moment
from undertow.optimisers.base import AbstractOptimiser, squares_of
from undertow.optimisers.sgd import SGD
from undertow.regime import Regime, SmallParameter
from undertow.trajectory import Trajectory

if TYPE_CHECKING:
    from undertow.manifold.limit import Limit

__all__ = [
    "Request",
    "check_names",
    "chosen_corrections",
    "has_metric",
    "metric_parts",
    "metric_velocity_at",
    "solve_metric",
    "start_value",
]

BEYOND = (
    "Beyond 1 the corrections are checked for label noise only, up to (1 - b2)/(eta lambda) = 10 (claim "
    "adam-limit-metric); their error grows with 1 - b2."
)
WITHOUT_STEP_SIZE = "give `step_size=`, the step size of the optimiser"


class Request(NamedTuple):
    """What the user asks of a limit with a metric."""

    function: str
    state: PyTree
    step_size: float | None
    quasi_static: bool
    corrections: tuple[str, ...]


def chosen_corrections(function: str, corrections: bool | Collection[str]) -> tuple[str, ...]:
    """Return the corrections that a user chose, by name: all for True, none for False."""
    if isinstance(corrections, bool):
        return CORRECTIONS if corrections else ()
    several = isinstance(corrections, Collection) and not isinstance(corrections, str)
    if not several or any(name not in CORRECTIONS for name in corrections):
        names = " and ".join(f'"{n}"' for n in CORRECTIONS)
        call = validate.quote(function, corrections=validate.shown(corrections))
        raise ValueError(f"{call}: give True, False, or a tuple of some of {names}.")
    return tuple(name for name in CORRECTIONS if name in corrections)


def has_metric(optimiser: AbstractOptimiser) -> bool:
    """Return whether an optimiser differs from SGD without momentum and decay, whose limit has shorter formulas."""
    if not isinstance(optimiser, SGD):
        return True
    return not (validate.concrete(optimiser.momentum) and not optimiser.momentum and not optimiser.weight_decay)


def start_value(
    function: str,
    noise: AbstractNoise,
    optimiser: AbstractOptimiser,
    params: PyTree,
    state: PyTree,
    argument: str = "state",
) -> Float[Array, " D"] | None:
    """Return the average v of squared gradients at the start as a flat vector: E g^2, or that of a given state.

    None for an optimiser whose metric is constant. Values with which the metric would be infinite raise an error.
    """
    # the velocity of SGD with momentum has the names of params, of which one may be "v"
    known = None if isinstance(optimiser, SGD) else jax.eval_shape(optimiser.init, params)
    if not (isinstance(known, dict) and "v" in known):
        if state is not None:
            raise ValueError(
                f"`{function}({argument}=...)`: the metric of {type(optimiser).__name__} is constant and has no state; "
                f"leave `{argument}` out."
            )
        return None
    given = None if state is None else squares_of(function, argument, state, params)
    moment = _flat_second_moment(noise, params)
    flat = moment if given is None else trees.ravel(given)
    if validate.concrete(flat):
        if not np.isfinite(np.asarray(moment)).all():
            raise ValueError(f"`{function}`: the mean of the squared gradients is not finite at these params.")
        _check_value(function, argument, np.asarray(flat), np.asarray(moment))
        _check_eps(function, np.asarray(flat), getattr(optimiser, "eps", 0.0))
    return flat


@eqx.filter_jit
def _flat_second_moment(noise: AbstractNoise, params: PyTree) -> Float[Array, " D"]:
    return trees.ravel(second_moment(noise, params))


def check_names(function: str, observe: Collection[str], v: Array | None) -> None:
    """Raise where the user observes something under the name of the state v."""
    if v is not None and "v" in observe:
        raise ValueError(f"`{function}(observe=...)`: 'v' is recorded by `{function}` itself; use another name.")


def _check_value(function: str, argument: str, v: np.ndarray, moment: np.ndarray) -> None:
    where = f'`{function}({argument}=...)`: `{argument}["v"]`'
    if not (np.isfinite(v).all() and (v >= 0).all()):
        bad = v[~(v >= 0) | ~np.isfinite(v)][0]
        raise ValueError(f"{where} has {bad}; its values are finite and at least 0.")
    count = int(((v == 0) & (moment > 0)).sum())
    if count:
        raise ValueError(
            f"{where} is 0 for {count} parameters whose gradients are not, which is no state after many steps; leave "
            f"`{argument}` out to start at the mean of the squared gradients."
        )


def _check_eps(function: str, v: np.ndarray, eps: Number) -> None:
    zero = v == 0
    if zero.any() and validate.concrete(eps) and not float(eps) > 0:
        raise ValueError(
            f"`{function}`: the gradients of {int(zero.sum())} parameters are 0 at this point, where the metric "
            "1/(sqrt(v) + eps) is infinite without eps; give the optimiser an `eps` above 0."
        )


def _prepare(limit: "Limit", params: PyTree, request: Request, resolution: float | None) -> tuple:
    """Return the motion, the frame of the rescaled problem at its start, and v there."""
    function, noise = request.function, limit.noise
    optimiser = limit.optimiser.prepared()
    v = start_value(function, noise, limit.optimiser, params, request.state)
    decay, root, scaled, unravel = _rescaled(optimiser, v, params)
    _check_request(limit.optimiser, request, decay)
    rescaled = RescaledNoise(noise, root)
    frame = frame_of_minimum(function, rescaled.problem, scaled, resolution)
    step = None if request.step_size is None else jnp.asarray(request.step_size, jnp.result_type(float))
    rank = frame.curvature.size if not validate.concrete(frame.point) else known_rank(frame)
    motion = MetricMotion(
        noise, optimiser, step, rank, frame.least_squares, unravel, v is not None, request.corrections
    )
    return motion, rescaled, frame, v


@eqx.filter_jit
def _rescaled(
    optimiser: AbstractOptimiser, v: Array | None, params: PyTree
) -> tuple[Float[Array, " D"], PyTree, PyTree, Callable[[Array], PyTree]]:
    """Return the decay, S^(1/2) and S^(-1/2) params, and the function that gives a flat vector the shape of params."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    metric = metric_at(optimiser, v, flat, unravel)
    root = unravel(metric.root)
    return metric.decay, root, jax.tree.map(jnp.divide, params, root), unravel


def _check_request(optimiser: AbstractOptimiser, request: Request, decay: Float[Array, " D"]) -> None:
    name, function = type(optimiser).__name__, request.function
    decays = validate.concrete(decay) and bool(np.any(np.asarray(decay) != 0))
    if request.step_size is None and decays:
        raise ValueError(
            f"`{function}`: weight decay moves along the manifold at the rate decay/step_size; {WITHOUT_STEP_SIZE}."
        )
    if request.step_size is not None and request.corrections and isinstance(optimiser, SGD) and optimiser.nesterov:
        raise ValueError(
            f"`{function}`: the corrections for a finite step size are those of heavy-ball momentum, and `{name}` has "
            "Nesterov's; give `corrections=False`."
        )


def metric_parts(limit: "Limit", params: PyTree, request: Request) -> Parts:
    """Return the parts of the drift of the limit of small steps: S^(1/2) times those of the rescaled problem."""
    motion, rescaled, frame, _ = _prepare(limit, params, request, limit.resolution)
    root = trees.ravel(rescaled.root)
    return Parts(*(motion.unravel(root * part / 2) for part in _small_step_parts(rescaled, frame)))


def metric_velocity_at(limit: "Limit", params: PyTree, request: Request) -> PyTree:
    """Return the whole drift, with decay and the corrections where the step size is given."""
    motion, rescaled, frame, v = _prepare(limit, params, request, limit.resolution)
    root = trees.ravel(rescaled.root)
    velocity = _velocity(motion, root * frame.point, v)
    if validate.concrete(velocity.total) and not np.isfinite(np.asarray(velocity.total)).all():
        raise ValueError(
            f"`{request.function}`: a derivative of the noise that the corrections need is not finite at this point, "
            "as that of sqrt(x) at 0; give `corrections=False`."
        )
    return motion.unravel(velocity.total + root * _small_step_parts(rescaled, frame)[0] / 2)


@eqx.filter_jit
def _small_step_parts(noise: RescaledNoise, frame: Frame) -> tuple[Array, Array, Array]:
    return covariance_parts(noise.problem, frame, noise.covariance(frame.unravel(frame.point)), 0.0)


@eqx.filter_jit
def _velocity(motion: MetricMotion, point: Array, v: Array | None) -> Velocity:
    return motion.velocity(point, v)


def solve_metric(
    limit: "Limit",
    params: PyTree,
    request: Request,
    slow_time: float,
    key: KeyLike | None,
    observe: dict[str, Callable[[PyTree], PyTree]],
    seeds: int | None,
    num_saves: int,
    steps: int,
    tolerance: float | None,
) -> Trajectory:
    """Solve the slow motion of an optimiser with a metric from a point of the manifold up to `slow_time`."""
    eta = request.step_size
    motion, rescaled, frame, v = _prepare(limit, params, request, limit.resolution)
    check_names(request.function, observe, v)
    if v is not None and eta is None and not request.quasi_static:
        raise ValueError(
            f"`{request.function}`: v relaxes at the rate kappa = (1 - b2)/step_size^2; {WITHOUT_STEP_SIZE}, or "
            "`quasi_static=True`."
        )
    kind = motion_of(rescaled, frame)
    if kind == "none":
        warn_null_drift(limit.noise)
    start, largest, least_squares, kappa = _at_start(motion, rescaled.root, frame, v)
    followed = None if request.quasi_static else v
    times = np.linspace(0.0, slow_time, num_saves + 1)
    gaps, rank = jax.device_put(np.diff(times)), known_rank(frame)
    recorder = Recorder(observe, limit.noise.problem, largest, rank, least_squares, frame.unravel)
    sizes = None
    if kind == "diffusion":
        ends, records, lost = solve_diffusion(motion, start, followed, key, seeds, gaps, recorder, steps)
    else:
        if tolerance is None:
            tolerance = TOLERANCE if followed is None else TOLERANCE_WITH_STATE
        path = metric_flow(motion, start, followed, gaps, recorder, jax.device_put(tolerance))
        ends, records, lost, sizes = path.end, path.records, path.lost, np.asarray(path.sizes)
        noise_at_end, frame_at_end = _at_end(motion, ends, None if followed is None else records["v"])
        check_tangent_noise(noise_at_end, frame, frame_at_end, kind)
        if seeds is not None:
            repeat = lambda x: jnp.broadcast_to(x[None], (seeds, *x.shape))
            ends, records, lost = jax.tree.map(repeat, (ends, records, lost))
    lost = np.asarray(lost, float)
    if np.isfinite(lost).any():
        report_lost_rank(lost, rank, kind)
    facts = {
        "made_by": "Limit.solve",
        "noise": type(limit.noise).__name__,
        "optimiser": type(limit.optimiser).__name__,
        "motion": kind,
        "kappa": None if kappa is None else float(kappa),
    }
    regime = _regime(limit.optimiser, rescaled, frame, eta, slow_time, sizes, request.corrections)
    return _trajectory(frame, times, eta, seeds, (ends, records, lost), facts, regime)


@eqx.filter_jit
def _at_start(
    motion: MetricMotion, root: PyTree, frame: Frame, v: Array | None
) -> tuple[Array, Array, bool, Array | None]:
    """Return the params of the frame, the largest curvature there and how it is computed, and the rate kappa of v."""
    start = trees.ravel(root) * frame.point
    own = motion.own_frame(start, frame)
    known = v is not None and motion.step_size is not None
    kappa = jnp.max(motion.relax(jnp.zeros_like(v), jnp.ones_like(v))) if known else None
    return start, jnp.max(own.curvature), own.least_squares, kappa


@eqx.filter_jit
def _at_end(motion: MetricMotion, point: Array, path: PyTree) -> tuple[RescaledNoise, Frame]:
    """Return the noise and the frame at the end, for the recorded values of v."""
    return motion.at(point, None if path is None else trees.ravel(jax.tree.map(lambda x: x[-1], path)))


def _trajectory(
    frame: Frame,
    times: np.ndarray,
    eta: float | None,
    seeds: int | None,
    solution: tuple[Array, PyTree, np.ndarray],
    facts: dict[str, str | float | None],
    regime: Regime,
) -> Trajectory:
    ends, records, lost = solution
    diverged, after = np.asarray(np.isfinite(lost)), times >= lost[..., None]
    unknown = np.full(len(times), np.nan)
    return Trajectory(
        params=(jax.vmap(frame.unravel) if seeds is not None else frame.unravel)(ends),
        observed=jax.tree.map(lambda x: blank_after(np.asarray(x), after) if after.any() else np.asarray(x), records),
        step=unknown if eta is None else times / eta**2,
        time=unknown if eta is None else times / eta,
        slow_time=times,
        diverged=diverged,
        diverged_at=np.where(diverged, lost, -1.0),
        seeds=seeds,
        clock="slow_time",
        facts=facts,
        regime=regime,
    )


def _regime(
    optimiser: AbstractOptimiser,
    noise: RescaledNoise,
    frame: Frame,
    eta: float | None,
    slow_time: float,
    sizes: np.ndarray | None,
    corrections: tuple[str, ...],
) -> Regime:
    """Return the regime in the metric, with the sizes of the corrections relative to the limit along the path."""
    base = limit_regime(frame, float(largest_flat(noise.problem, frame)), eta, slow_time, None)
    if eta is None:
        return base
    curvature = np.asarray(frame.curvature)
    own = optimiser.regime(
        eta, float(curvature.max() if optimiser.regime_of_largest else curvature[curvature > 0].min())
    )
    parameters, notes = base.parameters + own.parameters, base.notes
    if sizes is not None and corrections:
        relative = sizes[:, 1:] / np.maximum(sizes[:, :1], np.finfo(sizes.dtype).tiny)
        finite, metric = (float(x) for x in np.max(relative, axis=0))
        parameters += (
            SmallParameter("finite step / limit", finite, None, "part of the drift: covariance of a finite step size"),
            SmallParameter("fluctuating metric / limit", metric, None, "part of the drift: v follows the fluctuations"),
        )
        if not own.valid and "fluctuating_metric" in corrections:
            notes += (BEYOND,)
    return Regime(parameters, None, notes)
