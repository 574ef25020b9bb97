"""The loop of an optimiser: blocks of pre-drawn randomness, steps between observations, a test for divergence.

`start` and `advance` are pure functions of arrays that can be jitted and vmapped. A *lane* is a fixed number of
trajectories that advance together (the leading axis of every array), or a single trajectory without that axis. All
trajectories of a lane share the step counter, so that the control flow does not depend on the seed.

Trajectory i draws block b from fold_in(fold_in(key, i), b). Blocks start at multiples of their length, so that a run
can be cut at any step and observed at any steps without changing a bit.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from undertow import _trees as trees
from undertow._device import device
from undertow.dynamics.clock import Schedule
from undertow.noise.base import AbstractNoise
from undertow.optimisers.base import AbstractOptimiser, Rates

__all__ = ["NEVER", "RunSpec", "State", "advance", "block_length", "first_nonfinite", "seed_keys", "start", "values_of"]

NEVER = 2**30
"""A step that no run reaches: longer runs raise an error."""

LONGEST_BLOCK = 1000
BLOCK_BYTES = 2**20
CACHED_BYTES = 2**16
"""Blocks of at least this size are drawn one trajectory after the other on a CPU: all together would not fit its cache.
The numbers are the same."""

Observable = Callable[[PyTree], PyTree]


class RunSpec(eqx.Module):
    """What happens in one step, and what is recorded. Numbers are traced arrays, also those of the optimiser."""

    noise: AbstractNoise
    step_size: Float[Array, ""] | Schedule
    optimiser: AbstractOptimiser
    observe: dict[str, Observable]
    average: dict[str, Observable]
    maximum: dict[str, Observable] = eqx.field(default_factory=dict)
    """Functions of params whose largest value over all steps is kept in `State.maxima`."""


class State(eqx.Module):
    """One lane between two steps. `anchor` is the state at the start of the current block: diverged trajectories are
    reset to it and replayed from it."""

    params: PyTree
    memory: PyTree
    """The state of the optimiser; None for SGD without momentum."""
    anchor: tuple[PyTree, PyTree]
    keys: Key[Array, ""] | Key[Array, " lane"]
    step: Int[Array, ""]
    diverged_block: Int[Array, ""] | Int[Array, " lane"]
    """The first step of the block in which a trajectory became non-finite; NEVER while it is finite."""
    means: PyTree
    window: Int[Array, ""]
    """The number of steps that the running `means` cover, since the last observation."""
    maxima: PyTree
    """The largest values of `RunSpec.maximum` after each step so far; NaN once one of them was NaN."""


def block_length(noise: AbstractNoise, params: PyTree) -> int:
    """Return the number of steps per block: LONGEST_BLOCK, or fewer where the randomness of a block would exceed
    BLOCK_BYTES per trajectory."""
    one = jax.eval_shape(lambda: noise.randomness(jax.random.key(0), 1, params))
    return max(1, min(LONGEST_BLOCK, BLOCK_BYTES // max(1, trees.floats_bytes(one))))


def seed_keys(key: Key[Array, ""], seeds: Int[Array, "..."]) -> Key[Array, "..."]:
    """Return fold_in(key, i) for the seeds i, in their shape."""
    fold = lambda seed: jax.random.fold_in(key, seed)
    return jax.vmap(fold)(seeds) if seeds.ndim else fold(seeds)


def start(
    params: PyTree,
    keys: Key[Array, "..."],
    optimiser: AbstractOptimiser,
    *,
    average: dict[str, Observable],
    maximum: dict[str, Observable],
    memory: PyTree = None,
) -> State:
    """Return the state at step 0: a lane where `keys` has an axis, else a single trajectory.

    `average` and `maximum` are those of `RunSpec`. `memory` is the state of the optimiser that every trajectory starts
    with; None is that of its `init`.
    """
    wide = keys.ndim > 0
    fresh = lambda p: optimiser.init(p) if memory is None else memory
    memory = _each(wide)(fresh)(params)
    return State(
        params=params,
        memory=memory,
        anchor=(params, memory),
        keys=keys,
        step=jnp.asarray(0, jnp.int32),
        diverged_block=jnp.full(keys.shape, NEVER, jnp.int32),
        means=_each(wide)(lambda p: values_of(average, p))(params),
        window=jnp.asarray(0, jnp.int32),
        maxima=jax.tree.map(lambda x: jnp.full_like(x, -jnp.inf), _each(wide)(lambda p: values_of(maximum, p))(params)),
    )


def advance(
    spec: RunSpec,
    state: State,
    stop: Int[Array, ""],
    first: Int[Array, ""],
    every: Int[Array, ""],
    *,
    block: int,
    capacity: int,
) -> tuple[State, PyTree]:
    """Run from `state.step` to `stop` and observe at the steps first, first + every, ...

    Returns the new state and the observations, stacked on a leading axis of length `capacity`, of which the first ones
    are filled. There must be no more observations than `capacity`.
    """
    wide = state.keys.ndim > 0
    each = _each(wide)
    observe = each(lambda p: {name: f(p) for name, f in spec.observe.items()})
    shapes = jax.eval_shape(lambda s: (observe(s.params), s.means), state)
    buffer = jax.tree.map(lambda leaf: jnp.zeros((capacity + 1, *leaf.shape), leaf.dtype), shapes)
    run_steps = _segment_runner(spec, wide, block)

    def segment(carry: tuple, base: Array, high: Array, slices: PyTree, rates: Rates) -> tuple:
        """Run to the next observation or to the end of the block, whichever comes first."""
        position, moving, means, window, buffer, index = carry
        due = first + index * every
        target = jnp.minimum(due, high)
        length = target - position
        moving, sums = run_steps(moving, trees.zeros_like(means), position - base, target - base, slices, rates)
        means, window = _extend(means, window, sums, length)
        observing = target == due
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        values = jax.lax.cond(observing, lambda: (observe(moving[0]), means), lambda: blank)
        slot = jnp.where(observing, index, capacity)  # scratch row for steps that are not observed
        buffer = jax.tree.map(lambda b, v: b.at[slot].set(v), buffer, values)
        window = jnp.where(observing, 0, window)
        return target, moving, means, window, buffer, index + observing

    def one_block(carry: tuple) -> tuple:
        state, buffer, index = carry
        number = state.step // block
        base = number * block
        high = jnp.minimum(stop, base + block)
        like = state.params if not wide else jax.tree.map(lambda leaf: leaf[0], state.params)
        slices = _block_randomness(spec.noise, state.keys, number, block, like)
        rates = _rates(spec, base, block)
        now = (state.params, state.memory)
        anchor = jax.tree.map(lambda new, old: jnp.where(state.step == base, new, old), now, state.anchor)
        position, (params, memory, maxima), means, window, buffer, index = jax.lax.while_loop(
            lambda inner: inner[0] < high,
            lambda inner: segment(inner, base, high, slices, rates),
            (state.step, (*now, state.maxima), state.means, state.window, buffer, index),
        )
        finite = (state.diverged_block == NEVER) & each(_finite)((params, memory))
        params, memory = jax.tree.map(
            lambda new, old: jnp.where(_spread(finite, new), new, old), (params, memory), anchor
        )
        diverged_block = jnp.where(finite, NEVER, jnp.minimum(state.diverged_block, base))
        after = State(params, memory, anchor, state.keys, position, diverged_block, means, window, maxima)
        return after, buffer, index

    zero = jnp.asarray(0, jnp.int32)
    state, buffer, _ = jax.lax.while_loop(lambda c: c[0].step < stop, one_block, (state, buffer, zero))
    return state, jax.tree.map(lambda leaf: leaf[:capacity], buffer)


def first_nonfinite(spec: RunSpec, state: State, *, block: int) -> Int[Array, "..."]:
    """Return the step after which each diverged trajectory of a lane was not finite, by replaying its last block."""
    wide = state.keys.ndim > 0

    def replay(anchor: tuple, key: Array, base: Array) -> Array:
        step = _stepper(spec, wide=False)
        slices = _block_randomness(spec.noise, key, base // block, block, anchor[0])
        rates = _rates(spec, base, block)

        def one(j: Array, moving: tuple) -> tuple:
            params, memory, survived = moving
            params, memory = step(params, memory, trees.take(slices, j), _rates_of_step(rates, j))
            return params, memory, survived + (_finite((params, memory)) & (survived == j))

        *_, survived = jax.lax.fori_loop(0, block, one, (*anchor, jnp.asarray(0, jnp.int32)))
        # rounding may differ from the run by an ulp: for a replay that stays finite the end of the block is recorded
        return base + jnp.minimum(survived + 1, block)

    return _each(wide)(replay)(state.anchor, state.keys, state.diverged_block)


def _each(wide: bool) -> Callable[[Callable], Callable]:
    return jax.vmap if wide else lambda function: function


def _segment_runner(spec: RunSpec, wide: bool, block: int) -> Callable[..., tuple[tuple, PyTree]]:
    """Return a function that runs the steps `begin` to `end` of a block and adds up the averages."""
    each = _each(wide)
    step = _stepper(spec, wide)

    def run(moving: tuple, sums: PyTree, begin: Array, end: Array, slices: PyTree, rates: Rates) -> tuple:
        def one(j: Array, carry: tuple) -> tuple:
            (params, memory, maxima), sums = carry
            params, memory = step(params, memory, trees.take(slices, j), _rates_of_step(rates, j))
            maxima = jax.tree.map(jnp.maximum, maxima, each(lambda p: values_of(spec.maximum, p))(params))
            return (params, memory, maxima), trees.add(sums, each(lambda p: values_of(spec.average, p))(params))

        return jax.lax.cond(
            end - begin == block,  # a loop of known length has no test per step, which matters for small models
            lambda carry: jax.lax.fori_loop(0, block, one, carry),
            lambda carry: jax.lax.fori_loop(begin, end, one, carry),
            (moving, sums),
        )

    return run


def _stepper(spec: RunSpec, wide: bool) -> Callable[[PyTree, PyTree, PyTree, Rates], tuple[PyTree, PyTree]]:
    def step(params: PyTree, memory: PyTree, slice: PyTree, rates: Rates) -> tuple[PyTree, PyTree]:
        return spec.optimiser.step(params, memory, spec.noise, slice, rates)

    return jax.vmap(step, in_axes=(0, 0, 0, None)) if wide else step


def _block_randomness(noise: AbstractNoise, keys: Array, number: Array, block: int, like: PyTree) -> PyTree:
    """Return slices with leading axes (block,) or (block, lane)."""

    def draw(key: Array) -> PyTree:
        return noise.randomness(jax.random.fold_in(key, number), block, like)

    if not keys.ndim:
        return draw(keys)
    each = trees.floats_bytes(jax.eval_shape(lambda: noise.randomness(jax.random.key(0), block, like)))
    if device().platform == "cpu" and each >= CACHED_BYTES:
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), jax.lax.map(draw, keys))
    return jax.vmap(draw, out_axes=1)(keys)


def _rates(spec: RunSpec, base: Array, block: int) -> Rates:
    """Return the numbers of the optimiser for the steps of a block."""
    steps = base + jnp.arange(block, dtype=jnp.int32)
    if not callable(spec.step_size):
        return spec.optimiser.rates(steps, spec.step_size)
    sizes = jax.vmap(spec.step_size)(steps)
    return spec.optimiser.rates(steps, jnp.asarray(sizes, jnp.result_type(float)))


def _rates_of_step(rates: Rates, j: Array) -> Rates:
    return jax.tree.map(lambda rate: rate[j] if rate.ndim else rate, rates)


def values_of(functions: dict[str, Observable], params: PyTree) -> PyTree:
    """Return the values of functions of params as floats."""
    values = {name: function(params) for name, function in functions.items()}
    return jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.result_type(x, jnp.float32)), values)


def _extend(means: PyTree, window: Array, sums: PyTree, length: Array) -> tuple[PyTree, Array]:
    """Combine the mean of `window` steps with the sum of `length` more steps."""
    total = window + length

    def joined(mean: Array, summed: Array) -> Array:
        share = jnp.maximum(total, 1).astype(mean.dtype)
        return jnp.where(length > 0, mean + (summed - length.astype(mean.dtype) * mean) / share, mean)

    return jax.tree.map(joined, means, sums), total


def _finite(moving: PyTree) -> Bool[Array, ""]:
    """Return whether params and the state of the optimiser are finite; an infinite v stops Adam at finite params."""
    flags = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(moving)]
    return jnp.all(jnp.stack(flags))


def _spread(flags: Array, leaf: Array) -> Array:
    """Reshape one flag per trajectory so that it selects whole entries of `leaf`."""
    return flags.reshape(flags.shape + (1,) * (leaf.ndim - flags.ndim))
