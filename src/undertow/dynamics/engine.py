"""The one long loop: blocks of pre-drawn randomness, steps between observations, a test for divergence a block.

`start` and `advance` are pure functions of arrays, to be jitted, vmapped and driven from outside. A *lane* is a fixed
number of trajectories that advance together (leading axis of every array, `wide=True`), or a single one without that
axis. All trajectories of a lane share the step counter, so the control flow never depends on a seed.

Trajectory i draws block b from fold_in(fold_in(key, i), b); blocks start at multiples of their length whatever
happens, so a run can be cut anywhere and observed at any steps without a change of one bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from undertow import _trees as trees
from undertow.noise.base import AbstractNoise

__all__ = ["NEVER", "Rule", "State", "advance", "averages", "block_length", "first_nonfinite", "seed_keys", "start"]

NEVER = 2**30
"""A step that is never reached: longer runs are refused."""

LONGEST_BLOCK = 1000
BLOCK_BYTES = 2**20

Observable = Callable[[PyTree], PyTree]


class Rule(eqx.Module):
    """What a step does: theta+ = (1 - eta lambda) theta - eta g, or with momentum v+ = beta v + g + lambda theta,
    theta+ = theta - eta v. Numbers are arrays and traced; `momentum=None` is the rule without a velocity."""

    noise: AbstractNoise
    step_size: Float[Array, ""] | Callable[[Array], Array]
    momentum: Float[Array, ""] | None
    weight_decay: Float[Array, ""]
    observe: dict[str, Observable]
    average: dict[str, Observable]


class State(eqx.Module):
    """One lane between two steps. `anchor` is the state at the start of the current block, to freeze or replay from."""

    params: PyTree
    velocity: PyTree
    anchor: tuple[PyTree, PyTree]
    keys: Key[Array, ""] | Key[Array, " lane"]
    step: Int[Array, ""]
    died: Int[Array, ""] | Int[Array, " lane"]
    """The first step of the block in which a trajectory left the finite numbers; NEVER while it lives."""
    means: PyTree
    window: Int[Array, ""]
    """How many steps the running `means` cover, since the last observation."""


def block_length(noise: AbstractNoise, params: PyTree) -> int:
    """Steps a block: LONGEST_BLOCK, or fewer where the randomness of a block would pass BLOCK_BYTES a trajectory."""
    one = jax.eval_shape(lambda: noise.randomness(jax.random.key(0), 1, params))
    return max(1, min(LONGEST_BLOCK, BLOCK_BYTES // max(1, trees.floats_bytes(one))))


def seed_keys(key: Key[Array, ""], seeds: Int[Array, "..."]) -> Key[Array, "..."]:
    """fold_in(key, i) for the seeds i, in their shape."""
    fold = lambda seed: jax.random.fold_in(key, seed)
    return jax.vmap(fold)(seeds) if seeds.ndim else fold(seeds)


def start(rule: Rule, params: PyTree, keys: Key[Array, "..."]) -> State:
    """The state at step 0; `wide` where `keys` has an axis."""
    wide = keys.ndim > 0
    velocity = None if rule.momentum is None else trees.zeros_like(params)
    return State(
        params=params,
        velocity=velocity,
        anchor=(params, velocity),
        keys=keys,
        step=jnp.asarray(0, jnp.int32),
        died=jnp.full(keys.shape, NEVER, jnp.int32),
        means=_each(wide)(lambda p: averages(rule, p))(params),
        window=jnp.asarray(0, jnp.int32),
    )


def advance(
    rule: Rule,
    state: State,
    stop: Int[Array, ""],
    first: Int[Array, ""],
    every: Int[Array, ""],
    *,
    block: int,
    capacity: int,
) -> tuple[State, PyTree]:
    """Runs from `state.step` to `stop`, observing at first, first + every, ...

    Returns the new state and the observations, stacked on a leading axis of `capacity`, of which the first ones are
    filled. There must be no more of them than `capacity`.
    """
    wide = state.keys.ndim > 0
    each = _each(wide)
    step = _stepper(rule, wide)
    look = each(lambda p: {name: f(p) for name, f in rule.observe.items()})
    seen = jax.eval_shape(lambda s: (look(s.params), s.means), state)
    buffer = jax.tree.map(lambda leaf: jnp.zeros((capacity + 1, *leaf.shape), leaf.dtype), seen)

    def segment(carry: tuple, base: Array, high: Array, slices: PyTree, sizes: Array) -> tuple:
        """Steps to the next observation or the end of the block, whichever comes first."""
        position, params, velocity, means, window, buffer, index = carry
        due = first + index * every
        target = jnp.minimum(due, high)

        def one(j: Array, moving: tuple) -> tuple:
            params, velocity, sums = moving
            params, velocity = step(params, velocity, trees.take(slices, j), sizes[j] if sizes.ndim else sizes)
            return params, velocity, trees.add(sums, each(lambda p: averages(rule, p))(params))

        length = target - position
        params, velocity, sums = jax.lax.cond(
            length == block,  # a loop of known length needs no test a step, which a small model feels
            lambda moving: jax.lax.fori_loop(0, block, one, moving),
            lambda moving: jax.lax.fori_loop(position - base, target - base, one, moving),
            (params, velocity, trees.zeros_like(means)),
        )
        means, window = _extend(means, window, sums, length)
        observing = target == due
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), seen)
        values = jax.lax.cond(observing, lambda: (look(params), means), lambda: blank)
        slot = jnp.where(observing, index, capacity)  # the last row takes what nobody asked for
        buffer = jax.tree.map(lambda b, v: b.at[slot].set(v), buffer, values)
        window = jnp.where(observing, 0, window)
        return target, params, velocity, means, window, buffer, index + observing

    def one_block(carry: tuple) -> tuple:
        state, buffer, index = carry
        number = state.step // block
        base = number * block
        high = jnp.minimum(stop, base + block)
        like = state.params if not wide else jax.tree.map(lambda leaf: leaf[0], state.params)
        slices = _block_randomness(rule.noise, state.keys, number, block, like)
        sizes = _step_sizes(rule, base, block)
        fresh = state.step == base
        now = (state.params, state.velocity)
        anchor = jax.tree.map(lambda new, old: jnp.where(fresh, new, old), now, state.anchor)
        position, params, velocity, means, window, buffer, index = jax.lax.while_loop(
            lambda inner: inner[0] < high,
            lambda inner: segment(inner, base, high, slices, sizes),
            (state.step, state.params, state.velocity, state.means, state.window, buffer, index),
        )
        lives = (state.died == NEVER) & each(_finite)(params)
        params, velocity = jax.tree.map(
            lambda new, old: jnp.where(_spread(lives, new), new, old), (params, velocity), anchor
        )
        died = jnp.where(lives, NEVER, jnp.minimum(state.died, base))
        after = State(params, velocity, anchor, state.keys, position, died, means, window)
        return after, buffer, index

    zero = jnp.asarray(0, jnp.int32)
    state, buffer, _ = jax.lax.while_loop(lambda c: c[0].step < stop, one_block, (state, buffer, zero))
    return state, jax.tree.map(lambda leaf: leaf[:capacity], buffer)


def first_nonfinite(rule: Rule, state: State, *, block: int) -> Int[Array, "..."]:
    """The step after which each dead trajectory of the lane was no longer finite, by replaying its last block."""
    wide = state.keys.ndim > 0

    def replay(anchor: tuple, key: Array, died: Array) -> Array:
        step = _stepper(rule, wide=False)
        slices = _block_randomness(rule.noise, key, died // block, block, anchor[0])
        sizes = _step_sizes(rule, died, block)

        def one(j: Array, moving: tuple) -> tuple:
            params, velocity, survived = moving
            params, velocity = step(params, velocity, trees.take(slices, j), sizes[j] if sizes.ndim else sizes)
            return params, velocity, survived + (_finite(params) & (survived == j))

        *_, survived = jax.lax.fori_loop(0, block, one, (*anchor, jnp.asarray(0, jnp.int32)))
        # rounding may differ from the run by an ulp: a replay that survives is put at the block's end
        return died + jnp.minimum(survived + 1, block)

    return _each(wide)(replay)(state.anchor, state.keys, state.died)


def _each(wide: bool) -> Callable[[Callable], Callable]:
    return jax.vmap if wide else lambda function: function


def _stepper(rule: Rule, wide: bool) -> Callable[[PyTree, PyTree, PyTree, Array], tuple[PyTree, PyTree]]:
    decay = rule.weight_decay

    def plain(params: PyTree, slice: PyTree, eta: Array) -> PyTree:
        g = rule.noise.gradient(params, slice)
        kept = 1 - eta * decay
        return jax.tree.map(lambda p, d: kept.astype(p.dtype) * p - eta.astype(p.dtype) * d, params, g)

    def heavy_ball(beta: Array, params: PyTree, velocity: PyTree, slice: PyTree, eta: Array) -> tuple[PyTree, PyTree]:
        g = rule.noise.gradient(params, slice)
        velocity = jax.tree.map(
            lambda v, d, p: beta.astype(p.dtype) * v + d + decay.astype(p.dtype) * p, velocity, g, params
        )
        return jax.tree.map(lambda p, v: p - eta.astype(p.dtype) * v, params, velocity), velocity

    if rule.momentum is None:
        many = jax.vmap(plain, in_axes=(0, 0, None)) if wide else plain
        return lambda params, velocity, drawn, eta: (many(params, drawn, eta), velocity)
    with_velocity = partial(heavy_ball, rule.momentum)
    return jax.vmap(with_velocity, in_axes=(0, 0, 0, None)) if wide else with_velocity


def _block_randomness(noise: AbstractNoise, keys: Array, number: Array, block: int, like: PyTree) -> PyTree:
    """Slices with leading axes (block,) or (block, lane)."""

    def draw(key: Array) -> PyTree:
        return noise.randomness(jax.random.fold_in(key, number), block, like)

    return jax.vmap(draw, out_axes=1)(keys) if keys.ndim else draw(keys)


def _step_sizes(rule: Rule, base: Array, block: int) -> Float[Array, ""] | Float[Array, " block"]:
    if not callable(rule.step_size):
        return rule.step_size
    sizes = jax.vmap(rule.step_size)(base + jnp.arange(block, dtype=jnp.int32))
    return jnp.asarray(sizes, jnp.result_type(float))


def averages(rule: Rule, params: PyTree) -> PyTree:
    """What the running means are of, as floats."""
    values = {name: f(params) for name, f in rule.average.items()}
    return jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.result_type(x, jnp.float32)), values)


def _extend(means: PyTree, window: Array, sums: PyTree, length: Array) -> tuple[PyTree, Array]:
    """Joins the mean of `window` steps with the sum of `length` more."""
    total = window + length

    def joined(mean: Array, summed: Array) -> Array:
        share = jnp.maximum(total, 1).astype(mean.dtype)
        return jnp.where(length > 0, mean + (summed - length.astype(mean.dtype) * mean) / share, mean)

    return jax.tree.map(joined, means, sums), total


def _finite(params: PyTree) -> Any:
    flags = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(flags))


def _spread(flags: Array, leaf: Array) -> Array:
    """One flag a trajectory, shaped to select whole entries of `leaf`."""
    return flags.reshape(flags.shape + (1,) * (leaf.ndim - flags.ndim))
