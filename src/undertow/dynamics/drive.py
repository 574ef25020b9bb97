"""The Python around the engine: starts runs, advances them chunk by chunk, reports progress, handles Ctrl-C."""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import check_function, check_functions, check_observables, output_of
from undertow._device import available_memory
from undertow._progress import Progress
from undertow._validate import KeyLike, Number
from undertow.dynamics import engine
from undertow.dynamics.clock import Schedule, StepSize, check_step_size, clocks, steps_of_time
from undertow.dynamics.gather import Observations, Record, gather, join_seeds
from undertow.dynamics.lanes import ChunkPlan, LaneThreads, lane_width, power_of_two
from undertow.noise.base import AbstractNoise
from undertow.optimisers.base import AbstractOptimiser
from undertow.optimisers.transformation import Transformation
from undertow.trajectory import ProgressReport, Trajectory

__all__ = ["Continuation", "advance_run", "make_spec", "start_run"]

OBSERVATION_BYTES = 16 * 2**20
MOST_OBSERVATIONS = 8192
CLOCK_BYTES = 4 * 8
"""The step, the time and the slow time of an observation, and the step at which it was due."""
START = 2**32 - 1
"""The number folded into a seed's key for its start; block numbers never reach it."""


@dataclass(frozen=True, eq=False)
class Continuation:
    """A run between two chunks: all that is needed to continue it bitwise like an uninterrupted run."""

    function: str
    """The public function that started the run, for error messages: `descend` or `diffuse`."""
    spec: engine.RunSpec
    step_size: float | Schedule
    """The step size as it was given: a number in double precision, or the schedule."""
    lanes: tuple[engine.State, ...]
    step: int
    block: int
    every: int | None
    capacity: int
    seeds: int | None
    clock: Literal["step", "time"] = "step"
    """Whether the length of the run is given in steps or in units of time."""
    substeps: int = 1
    """Steps of the engine per step of SGD: more than one where an SDE is resolved more finely."""
    record: Record = field(default_factory=lambda: (np.zeros(0, int), {}))
    seconds: float = 0.0
    lane_width: int | None = None

    def optimiser_state(self) -> PyTree:
        """Return the state of the optimiser, with the axis of seeds; None without a state."""
        if self.seeds is None:
            return self.lanes[0].memory
        return join_seeds([lane.memory for lane in self.lanes], self.seeds)

    def resume(self, steps: int | None, time: Number | None, progress: ProgressReport) -> Trajectory:
        """Continue by `steps`, or by `time` where the run is that of an SDE. See `Trajectory.resume`."""
        name, length, other = ("steps", steps, time) if self.clock == "step" else ("time", time, steps)
        if length is None or other is not None:
            given = validate.quote("run.resume", steps=validate.shown(steps), time=validate.shown(time))
            raise TypeError(f"{given}: the run was made by `{self.function}`; give `{name}=` and nothing else.")
        if self.clock == "time":
            steps = steps_of_time("run.resume", length, cast("float", self.step_size))  # an SDE has no schedule
        else:
            steps = validate.positive_integer("run.resume", "steps", steps)
        return advance_run(self, steps, progress, stacklevel=4)


def start_run(
    function: str,
    noise: AbstractNoise,
    params: PyTree | Callable,
    *,
    step_size: StepSize | None,
    key: KeyLike | None,
    observe: dict[str, Callable] | None,
    average: dict[str, Callable] | None,
    every: int | None,
    seeds: int | None,
    optimiser: AbstractOptimiser,
    lanes_of: int | None,
    optimiser_state: PyTree = None,
) -> Continuation:
    """Check the arguments of a run and return the run at step 0; `lanes_of` is the requested `lane_width`."""
    validate.instance(function, "noise", noise, AbstractNoise, "a noise, such as `Minibatch(problem, 1)`")
    key = validate.as_key(function, key)
    seeds, every, lanes_of = (
        None if count is None else validate.positive_integer(function, name, count)
        for name, count in (("seeds", seeds), ("every", every), ("lane_width", lanes_of))
    )
    init = _as_init(function, params)
    sample = init.params if isinstance(init, _Constant) else _drawn_params(function, init, key)
    own_clock = isinstance(optimiser, Transformation) and step_size is None
    eta = math.nan if own_clock else check_step_size(function, step_size)
    spec = make_spec(function, noise, eta, optimiser, observe, average)
    noise.check(sample)
    check_memory(function, spec.optimiser, optimiser_state, sample)
    for name, functions in (("observe", spec.observe), ("average", spec.average)):
        check_observables(function, name, functions, sample)
    if not callable(eta) and not own_clock:
        noise.check_step_size(eta)
    block = engine.block_length(noise, sample)
    shapes = jax.eval_shape(
        lambda p: ({name: f(p) for name, f in spec.observe.items()}, engine.values_of(spec.average, p)), sample
    )
    width = None if seeds is None else lane_width(function, lanes_of, seeds, noise, sample, block)
    capacity = power_of_two(OBSERVATION_BYTES // max(1, trees.floats_bytes(shapes) * (width or 1)))
    if seeds is None or width is None:
        lanes = (_start(init, key, jax.device_put(np.asarray(0)), spec.optimiser, spec.average, optimiser_state),)
    else:
        numbers = np.arange(math.ceil(seeds / width) * width).reshape(-1, width)
        lanes = tuple(
            _start(init, key, jax.device_put(row), spec.optimiser, spec.average, optimiser_state) for row in numbers
        )
    return Continuation(
        function=function,
        spec=spec,
        step_size=eta,
        lanes=lanes,
        step=0,
        block=block,
        every=every,
        capacity=min(max(capacity, 2), MOST_OBSERVATIONS),
        seeds=seeds,
        lane_width=width,
    )


def make_spec(
    function: str,
    noise: AbstractNoise,
    eta: float | Schedule,
    optimiser: AbstractOptimiser,
    observe: dict[str, Callable] | None,
    average: dict[str, Callable] | None,
) -> engine.RunSpec:
    """Check the settings of the update and the observables, and return them as arrays and functions."""
    observe, average = check_functions(function, "observe", observe), check_functions(function, "average", average)
    clash = sorted(set(observe) & set(average))
    if clash:
        raise ValueError(f"`{function}`: {clash[0]!r} is in `observe` and in `average`; give them different names.")
    floats = jnp.result_type(float)
    return engine.RunSpec(
        noise=noise,
        step_size=jax.device_put(np.asarray(eta, floats)) if isinstance(eta, float | int) else eta,
        optimiser=optimiser.prepared(),
        observe=observe,
        average=average,
    )


def check_memory(function: str, optimiser: AbstractOptimiser, memory: PyTree, params: PyTree) -> None:
    """Raise where a state of the optimiser does not fit params."""
    if memory is None:
        return
    known = jax.eval_shape(optimiser.init, params)
    wrong = trees.mismatch(trees.arrays(memory), known, f"{function}(optimiser_state=...)")
    if wrong:
        raise ValueError(wrong.replace("params are", "the state of the optimiser is") + ".")


def advance_run(run: Continuation, steps: int | None, progress: ProgressReport, stacklevel: int = 4) -> Trajectory:
    """Run `steps` more steps and return the whole run so far. `stacklevel` is that of the warning after Ctrl-C."""
    if progress is not None and not isinstance(progress, bool):
        check_function(run.function, "progress(done, total)", progress)
    goal = run.step + validate.positive_integer(run.function, "steps", steps)
    if goal >= engine.NEVER:
        raise ValueError(f"{validate.quote(run.function, steps=steps)}: a run has fewer than {engine.NEVER} steps.")
    due = _observation_steps(run, goal)
    clocks(run.function, run.step_size, np.asarray([goal]))  # raises for a bad schedule before anything runs
    began = time.perf_counter()
    observations = Observations(run.record, due, run.seeds)
    interrupted = False
    plan = ChunkPlan(run.block)
    lanes, now = run.lanes, run.step

    with Progress(run.function, goal - run.step, progress) as bar, LaneThreads(len(lanes)) as threads:
        while now < goal:
            rest = due[observations.taken :]
            stop, filled = plan.next(now, goal, rest, run.capacity)
            first, every = _spacing(rest)
            try:
                done = threads.map(partial(_run_lane, run, stop, first, every, filled), lanes)
                lanes = tuple(state for state, _ in done)
                observations.put([values for _, values in done], filled)
                now = stop
                bar.update(now - run.step)
            except KeyboardInterrupt:
                if now == run.step:
                    raise
                interrupted = True
                break
    if interrupted:
        what = f"`{run.function}` was stopped by Ctrl-C after {now - run.step} of {goal - run.step} steps"
        warnings.warn(f"{what}; the run contains the finished steps.", RuntimeWarning, stacklevel=stacklevel)
    record = observations.record()
    done = replace(run, lanes=lanes, step=now, record=record, seconds=run.seconds + time.perf_counter() - began)
    return _trajectory(done, interrupted)


def _drawn_params(function: str, init: Callable, key: Array) -> PyTree:
    """Return the start of seed 0, after a check of the user's function."""
    start_key = jax.random.fold_in(engine.seed_keys(key, jnp.asarray(0)), START)
    validate.params_of_floats(function, output_of(function, "params(key)", init, start_key))
    return _first_params(init, start_key)


@eqx.filter_jit
def _first_params(init: Callable, key: Array) -> PyTree:
    return init(key)


@eqx.filter_jit
def _start(
    init: Callable, key: Array, seeds: Array, optimiser: AbstractOptimiser, average: dict[str, Callable], memory: PyTree
) -> engine.State:
    """Return the state of a lane of seeds, or of one seed, at step 0.

    Neither the noise nor the observables are arguments, so that runs which differ in these share one program.
    """
    keys = engine.seed_keys(key, seeds)

    def start_one(key: Array) -> PyTree:
        params = init(jax.random.fold_in(key, START))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), params)  # a weak type would compile twice

    params = jax.vmap(start_one)(keys) if keys.ndim else start_one(keys)
    return engine.start(params, keys, optimiser, average=average, maximum={}, memory=memory)


@eqx.filter_jit
def _advance(
    spec: engine.RunSpec, state: engine.State, stop: Array, first: Array, every: Array, block: int, capacity: int
) -> tuple[engine.State, PyTree]:
    return engine.advance(spec, state, stop, first, every, block=block, capacity=capacity)


@eqx.filter_jit
def _first_nonfinite(spec: engine.RunSpec, state: engine.State, block: int) -> Array:
    return engine.first_nonfinite(spec, state, block=block)


def _run_lane(
    run: Continuation, stop: int, first: int, every: int, filled: int, lane: engine.State
) -> tuple[engine.State, PyTree]:
    """Advance one lane to the end of a chunk and move its observations to the host."""
    numbers = (jax.device_put(np.int32(number)) for number in (stop, first, every))
    state, buffer = _advance(run.spec, lane, *numbers, run.block, run.capacity)
    jax.block_until_ready(state)
    return state, jax.tree.map(lambda leaf: np.array(np.asarray(leaf)[:filled]), buffer)


def _observation_steps(run: Continuation, goal: int) -> np.ndarray:
    """Return the observed steps after run.step up to the goal; step 0 is observed once, at the start."""
    if run.every is None:
        return np.asarray([goal] if run.step else [0, goal])
    grid = range((run.step // run.every + 1) * run.every if run.step else 0, goal + 1, run.every)
    _check_memory(run, len(grid))
    return np.arange(grid.start, grid.stop, grid.step)


def _check_memory(run: Continuation, count: int) -> None:
    """Raise before a run whose observations do not fit into the memory that is free."""
    params = run.lanes[0].params
    one = params if run.seeds is None else jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), params)
    shapes = jax.eval_shape(
        lambda p: ({name: f(p) for name, f in run.spec.observe.items()}, engine.values_of(run.spec.average, p)), one
    )
    each = trees.floats_bytes(shapes) * (run.seeds or 1) + CLOCK_BYTES
    needed, free = each * (count + len(run.record[0])), available_memory()
    if needed > free:
        raise ValueError(
            f"{validate.quote(run.function, every=run.every, seeds=run.seeds)}: {count:,} observations of {each:,} "
            f"bytes need {needed:,} bytes of memory, and {free:,} are free; give a larger `every`, fewer `seeds` or "
            "smaller observables."
        )


def _spacing(due: np.ndarray) -> tuple[int, int]:
    """Return the next observed step and the distance between the ones after it, as `engine.advance` takes them."""
    if len(due) == 0:
        return engine.NEVER, 1
    if len(due) == 1:
        return int(due[0]), engine.NEVER - int(due[0])
    return int(due[0]), int(due[1] - due[0])


def _as_init(function: str, params: PyTree | Callable) -> Callable:
    """Return init(key) from params or from a function of a key. A module that holds arrays is params."""
    arrays = any(eqx.is_array(leaf) for leaf in jax.tree.leaves(params))
    if callable(params) and not arrays:
        check_function(function, "params(key)", params)
        return params
    converted = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, float) else leaf, params)
    validate.params_of_floats(function, converted)
    return _Constant(jax.tree.map(jnp.asarray, converted))


class _Constant(eqx.Module):
    """The same start for every seed."""

    params: PyTree

    def __call__(self, key: Array) -> PyTree:
        return self.params


def _trajectory(run: Continuation, interrupted: bool) -> Trajectory:
    steps = run.record[0]
    diverged_at = [
        np.asarray(_first_nonfinite(run.spec, lane, run.block))
        if np.any(np.asarray(lane.diverged_block) < engine.NEVER)
        else np.asarray(lane.diverged_block)
        for lane in run.lanes
    ]
    params, diverged, diverged_at, observed = gather(run.lanes, diverged_at, steps, run.record[1], run.seeds)
    time_, slow_time = clocks(run.function, run.step_size, steps)
    facts = {
        "made_by": run.function,
        "noise": type(run.spec.noise).__name__,
        "optimiser": type(run.spec.optimiser).__name__,
        "step_size": None
        if callable(run.step_size) or run.step_size != run.step_size
        else run.step_size * run.substeps,
        "steps": run.step / run.substeps if run.substeps > 1 else run.step,
        "block": run.block,
        "lane_width": run.lane_width,
        "seconds": run.seconds,
    }
    return Trajectory(
        params=params,
        observed=observed,
        step=steps if run.substeps == 1 else steps / run.substeps,
        time=time_,
        slow_time=slow_time * run.substeps,
        diverged=diverged,
        diverged_at=np.where(diverged, -(-diverged_at // run.substeps), -1),
        seeds=run.seeds,
        clock=run.clock,
        interrupted=interrupted,
        facts=facts,
        continuation=run,
    )
