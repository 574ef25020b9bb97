"""The Python around the engine: lanes of seeds, chunks of blocks, progress, Ctrl-C, observations moved to the host."""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._device import device
from undertow._progress import Progress
from undertow._validate import KeyLike
from undertow.dynamics import engine
from undertow.dynamics.clock import check_step_size, clocks
from undertow.noise.base import AbstractNoise
from undertow.trajectory import Trajectory

__all__ = ["Continuation", "begin", "continued", "go_on"]

LANE_WIDTH = 16
"""Seeds that advance together on a CPU. Fixed, because another width rounds differently in the last bits."""

CHUNK_SECONDS = 0.5
OBSERVATION_BYTES = 16 * 2**20
MOST_OBSERVATIONS = 8192
ACCELERATOR_LANE_BYTES = 16 * 2**30
START = 2**32 - 1
"""The number folded into a seed's key for its start; block numbers never reach it."""


@dataclass(frozen=True, eq=False)
class Continuation:
    """A run between two chunks: everything needed to go on with it, the same bits as if it had never stopped."""

    function: str
    rule: engine.Rule
    step_size: Any
    """The rule's step size as it was given: a number in double precision, or the schedule."""
    lanes: tuple[engine.State, ...]
    step: int
    block: int
    every: int | None
    capacity: int
    seeds: int | None
    substeps: int = 1
    """Steps of the engine for one step of SGD: more than one where an SDE is resolved more finely."""
    record: tuple[tuple[int, ...], dict[str, PyTree]] = ((), {})
    seconds: float = 0.0
    wide: int | None = None


def begin(
    function: str,
    noise: AbstractNoise,
    params: PyTree | Callable,
    *,
    step_size: Any,
    key: KeyLike | None,
    observe: dict[str, Callable] | None,
    average: dict[str, Callable] | None,
    every: int | None,
    seeds: int | None,
    momentum: Any,
    weight_decay: Any,
    lane_width: int | None,
) -> Continuation:
    """Checks everything a run is started with, and starts it."""
    if not isinstance(noise, AbstractNoise):
        raise TypeError(
            f"`{function}(noise, ...)`: got a {type(noise).__name__}; give a noise, such as `Minibatch(problem, 1)`."
        )
    key = validate.as_key(function, key)
    eta = check_step_size(function, step_size)
    validate.finite_number(function, "momentum", momentum, below=1.0)
    validate.finite_number(function, "weight_decay", weight_decay)
    if seeds is not None:
        seeds = validate.positive_integer(function, "seeds", seeds)
    if every is not None:
        every = validate.positive_integer(function, "every", every)
    observe, average = dict(observe or {}), dict(average or {})
    clash = sorted(set(observe) & set(average))
    if clash:
        raise ValueError(f"`{function}`: {clash[0]!r} is in `observe` and in `average`; give them different names.")

    init = _as_init(function, params)
    first_key = engine.seed_keys(key, jnp.asarray(0))
    sample = init(jax.random.fold_in(first_key, START))
    noise.check(sample)
    if not callable(step_size):
        noise.check_step_size(float(step_size))
    floats = jnp.result_type(float)
    rule = engine.Rule(
        noise=noise,
        step_size=eta,
        momentum=None if _is_zero(momentum) else jnp.asarray(momentum, floats),
        weight_decay=jnp.asarray(weight_decay, floats),
        observe=observe,
        average=average,
    )
    block = engine.block_length(noise, sample)
    shapes = jax.eval_shape(lambda p: ({n: f(p) for n, f in observe.items()}, engine.averages(rule, p)), sample)
    each = trees.floats_bytes(shapes)
    width = None if seeds is None else _lane_width(lane_width, seeds, noise, sample, block)
    capacity = _power_of_two(OBSERVATION_BYTES // max(1, each * (width or 1)))
    if seeds is None or width is None:
        lanes = (_start(rule, init, first_key),)
    else:
        numbers = np.arange(math.ceil(seeds / width) * width).reshape(-1, width)
        lanes = tuple(_start(rule, init, engine.seed_keys(key, jnp.asarray(row))) for row in numbers)
    return Continuation(
        function=function,
        rule=rule,
        step_size=step_size if callable(step_size) else float(step_size),
        lanes=lanes,
        step=0,
        block=block,
        every=every,
        capacity=min(max(capacity, 2), MOST_OBSERVATIONS),
        seeds=seeds,
        wide=width,
    )


def continued(function: str, run: Trajectory, changed: bool) -> Continuation:
    """What a trajectory goes on from, if it was made by `function` and nothing but its length is to change."""
    if not isinstance(run.continuation, Continuation) or run.continuation.function != function:
        raise TypeError(f"`{function}(run, ...)`: the run was made by `{run.facts.get('made_by')}`; continue it there.")
    if changed:
        raise TypeError(f"`{function}(run, ...)`: a run goes on with its own settings; give only how far.")
    return run.continuation


def go_on(
    run: Continuation,
    steps: int,
    progress: Callable[[int, int], Any] | bool | None,
    clock: Literal["step", "time"] = "step",
) -> Trajectory:
    """Runs `steps` more steps and gathers the whole run so far."""
    goal = run.step + validate.positive_integer(run.function, "steps", steps)
    if goal >= engine.NEVER:
        raise ValueError(f"{validate.quote(run.function, steps=steps)}: a run has fewer than {engine.NEVER} steps.")
    due = _observation_steps(run, goal)
    clocks(run.function, run.step_size, np.asarray([goal]))  # a bad schedule is refused before anything runs
    began = time.perf_counter()
    seen: list[list[PyTree]] = [[] for _ in run.lanes]
    steps_seen: list[int] = []
    interrupted = False
    plan = _ChunkPlan(run.block)
    lanes, now = run.lanes, run.step

    with Progress(run.function, goal - run.step, progress) as bar, _Workers(len(lanes)) as workers:
        while now < goal:
            stop, filled = plan.next(now, goal, due[len(steps_seen) :], run.capacity)
            first, every = _spacing(due[len(steps_seen) :])
            try:
                chunk = workers.map(partial(_run_lane, run, stop, first, every, filled), lanes)
                lanes = tuple(state for state, _ in chunk)
                for store, (_, values) in zip(seen, chunk, strict=True):
                    store.append(values)
                steps_seen.extend(due[len(steps_seen) :][:filled].tolist())
                now = stop
                bar.update(now - run.step)
            except KeyboardInterrupt:
                if now == run.step:
                    raise
                interrupted = True
                break
    if interrupted:
        what = f"`{run.function}` was stopped by Ctrl-C after {now - run.step} of {goal - run.step} steps"
        warnings.warn(f"{what}; the run holds what was done.", RuntimeWarning, stacklevel=3)
    steps_before, before = run.record
    observed = _join(run, [_stack(parts) for parts in seen], before, bool(steps_before))
    done = replace(
        run,
        lanes=lanes,
        step=now,
        record=(steps_before + tuple(steps_seen), observed),
        seconds=run.seconds + time.perf_counter() - began,
    )
    return _trajectory(done, interrupted, clock)


@eqx.filter_jit
def _start(rule: engine.Rule, init: Callable, keys: Array) -> engine.State:
    def begin_one(key: Array) -> PyTree:
        begun = init(jax.random.fold_in(key, START))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), begun)  # a weak type would compile twice

    return engine.start(rule, jax.vmap(begin_one)(keys) if keys.ndim else begin_one(keys), keys)


@eqx.filter_jit
def _advance(
    rule: engine.Rule, state: engine.State, stop: Array, first: Array, every: Array, block: int, capacity: int
) -> tuple[engine.State, PyTree]:
    return engine.advance(rule, state, stop, first, every, block=block, capacity=capacity)


@eqx.filter_jit
def _first_nonfinite(rule: engine.Rule, state: engine.State, block: int) -> Array:
    return engine.first_nonfinite(rule, state, block=block)


def _run_lane(
    run: Continuation, stop: int, first: int, every: int, filled: int, lane: engine.State
) -> tuple[engine.State, PyTree]:
    """One lane to the end of a chunk, its observations on the host."""
    whole = (jnp.asarray(number, jnp.int32) for number in (stop, first, every))
    state, buffer = _advance(run.rule, lane, *whole, run.block, run.capacity)
    jax.block_until_ready(state)
    return state, jax.tree.map(lambda leaf: np.array(np.asarray(leaf)[:filled]), buffer)


class _ChunkPlan:
    """How far the next chunk goes: about CHUNK_SECONDS, to a block's end, within what the buffer holds."""

    def __init__(self, block: int):
        self.block = block
        self.blocks = 1
        self.asked = 0
        self.since = 0.0

    def next(self, now: int, goal: int, due: np.ndarray, capacity: int) -> tuple[int, int]:
        """The chunk's last step, and how many observations fall in it."""
        elapsed = time.perf_counter() - self.since
        if self.asked == 1:  # the first chunk's time is the compiler's
            self.blocks = 4
        elif self.asked > 1:
            growth = min(8.0, max(0.25, CHUNK_SECONDS / max(elapsed, 1e-9)))
            self.blocks = max(1, int(self.blocks * growth))
        self.asked += 1
        self.since = time.perf_counter()
        stop = min(goal, (now // self.block + self.blocks) * self.block)
        if len(due) > capacity:
            stop = min(stop, int(due[capacity]) - 1)
        return stop, int(np.searchsorted(due, stop, side="right"))


class _Workers:
    """Lanes on all cores of a CPU, by threads: XLA releases the interpreter. One lane, or an accelerator: in place."""

    def __init__(self, lanes: int):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.count = min(lanes, cores) if device().platform == "cpu" else 1
        self.pool: ThreadPoolExecutor | None = None
        self.compiled = False

    def __enter__(self) -> "_Workers":
        if self.count > 1:
            self.pool = ThreadPoolExecutor(self.count, thread_name_prefix="undertow")
            # settings made with a context manager (x64, a default device) hold for one thread only
            if self.pool.submit(_settings).result() != _settings():
                self.pool.shutdown()
                self.pool = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def map(self, function: Callable, lanes: Iterable) -> list:
        """function(lane) for every lane. The first call of all compiles alone, so that nothing compiles twice."""
        lanes = list(lanes)
        if self.pool is None:
            return [function(lane) for lane in lanes]
        head = [] if self.compiled else [function(lanes[0])]
        self.compiled = True
        futures = [self.pool.submit(function, lane) for lane in lanes[len(head) :]]
        return head + [future.result() for future in futures]


def _settings() -> list:
    return [getattr(jax.config, name, None) for name in sorted(jax.config.values)]


def _observation_steps(run: Continuation, goal: int) -> np.ndarray:
    """The steps after run.step, up to the goal, that are observed; step 0 too, once."""
    if run.every is None:
        return np.asarray([goal] if run.step else [0, goal])
    return np.asarray(_grid(run, goal) if run.step else [0, *_grid(run, goal)], dtype=int)


def _grid(run: Continuation, goal: int) -> range:
    every = run.every or 1
    return range((run.step // every + 1) * every, goal + 1, every)


def _spacing(due: np.ndarray) -> tuple[int, int]:
    """The next observation and the distance from it to the ones after, as the engine wants them."""
    if len(due) == 0:
        return engine.NEVER, 1
    if len(due) == 1:
        return int(due[0]), engine.NEVER - int(due[0])
    return int(due[0]), int(due[1] - due[0])


def _as_init(function: str, params: PyTree | Callable) -> Callable:
    """init(key) from params or from a function of a key. A module that holds arrays is params, callable or not."""
    arrays = any(eqx.is_array(leaf) for leaf in jax.tree.leaves(params))
    if callable(params) and not arrays:
        return params
    converted = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray | float) else leaf, params)
    validate.params_of_floats(function, converted)
    return _Constant(converted)


class _Constant(eqx.Module):
    """The same start for every seed."""

    params: PyTree

    def __call__(self, key: Array) -> PyTree:
        return self.params


def _is_zero(value: Any) -> bool:
    return validate.concrete(value) and float(value) == 0.0


def _lane_width(asked: int | None, seeds: int, noise: AbstractNoise, params: PyTree, block: int) -> int:
    if asked is not None:
        return validate.positive_integer("lane_width", "lane_width", asked)
    if device().platform == "cpu":
        return LANE_WIDTH
    one = jax.eval_shape(lambda: noise.randomness(jax.random.key(0), 1, params))
    each = block * trees.floats_bytes(one) + 8 * trees.floats_bytes(params)
    return min(2 ** math.ceil(math.log2(seeds)), _power_of_two(ACCELERATOR_LANE_BYTES // max(1, each)))


def _power_of_two(number: int) -> int:
    """The largest power of two up to `number`, at least 1."""
    return 2 ** max(0, int(number).bit_length() - 1)


def _stack(parts: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts) if len(parts) > 1 else parts[0]


def _join(run: Continuation, lanes: list[PyTree], before: dict, continued: bool) -> dict[str, PyTree]:
    """Lanes side by side as (seeds, times, ...), after what was observed before."""

    def leaf(*parts: np.ndarray) -> np.ndarray:
        if run.seeds is None:
            return parts[0]
        return np.moveaxis(np.concatenate(parts, axis=1)[:, : run.seeds], 0, 1)

    looked, means = jax.tree.map(leaf, *lanes)
    new = {**looked, **means}
    if not continued:
        return new
    axis = 0 if run.seeds is None else 1
    return jax.tree.map(lambda old, more: np.concatenate([old, more], axis=axis), before, new)


def _trajectory(run: Continuation, interrupted: bool, clock: Literal["step", "time"]) -> Trajectory:
    steps, observed = np.asarray(run.record[0], int), run.record[1]
    died = [np.asarray(lane.died) for lane in run.lanes]
    at = [
        np.asarray(_first_nonfinite(run.rule, lane, run.block)) if np.any(gone < engine.NEVER) else gone
        for lane, gone in zip(run.lanes, died, strict=True)
    ]
    if run.seeds is None:
        params = run.lanes[0].params
        gone, when = died[0], at[0]
    else:
        params = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: run.seeds], *[s.params for s in run.lanes])
        gone, when = (np.concatenate(parts)[: run.seeds] for parts in (died, at))
    diverged = np.asarray(gone < engine.NEVER)
    diverged_at = np.where(diverged, when, -1)
    if np.any(diverged):
        after = diverged[..., None] & (steps >= diverged_at[..., None])
        observed = jax.tree.map(lambda x: _blank(x, after), observed)
    time_, slow = clocks(run.function, run.step_size, steps)
    facts = {
        "made_by": run.function,
        "noise": type(run.rule.noise).__name__,
        "step_size": None if callable(run.step_size) else run.step_size * run.substeps,
        "steps": run.step / run.substeps if run.substeps > 1 else run.step,
        "block": run.block,
        "lane_width": run.wide,
        "seconds": run.seconds,
    }
    return Trajectory(
        params=params,
        observed=observed,
        step=steps if run.substeps == 1 else steps / run.substeps,
        time=time_,
        slow_time=slow * run.substeps,
        diverged=diverged,
        diverged_at=diverged_at if run.substeps == 1 else np.where(diverged, -(-when // run.substeps), -1),
        seeds=run.seeds,
        clock=clock,
        interrupted=interrupted,
        facts=facts,
        continuation=run,
    )


def _blank(values: np.ndarray, after: np.ndarray) -> np.ndarray:
    """NaN where `after` (seeds, times); whole numbers and flags become floats to hold it."""
    values = values.astype(np.result_type(values, np.float32)) if values.dtype.kind not in "fc" else values.copy()
    values[after] = np.nan
    return values
