"""A run of SGD as a pure function, for code that is itself jitted or vmapped."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from undertow import _validate as validate
from undertow._validate import KeyLike, Number
from undertow.dynamics import engine
from undertow.noise.base import AbstractNoise
from undertow.optimisers.sgd import SGD

__all__ = ["TracedRun", "run_traced"]


class TracedRun(NamedTuple):
    """The end of a run of SGD."""

    params: PyTree
    """The params after the last step; of a diverged run, those at the start of the block in which it diverged."""
    diverged: Bool[Array, ""]
    """Whether the params became non-finite."""
    maximum: dict[str, Float[Array, ""]]
    """The largest value of each function of `maximum` over all steps; NaN once it was NaN."""


def run_traced(
    noise: AbstractNoise,
    params: PyTree,
    *,
    step_size: Number,
    steps: int | Int[Array, ""],
    key: KeyLike,
    weight_decay: Number = 0.0,
    maximum: dict[str, Callable[[PyTree], Array]] | None = None,
    block: int | None = None,
) -> TracedRun:
    """Return the end of one run of SGD, theta+ = (1 - eta lambda) theta - eta g.

    A pure function: `jax.jit` and `jax.vmap` apply to it, and all numbers may be traced. Outside of a trace use
    `descend`, which also observes, reports progress and runs many seeds on all cores.

    **Arguments:** as those of `descend`; the run is the one of `key` itself, without folding in a seed. `maximum` are
    functions of params whose largest value over the steps 1 to `steps` is returned. `block` is the number of steps
    whose randomness is drawn at once (None: as in `descend`, and at most `steps` where that is not traced).

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.dynamics.traced import run_traced
    >>> problem = ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0]))
    >>> end = lambda eta: run_traced(ut.Minibatch(problem, 1), jnp.array(0.0), step_size=eta, steps=200, key=0)
    >>> print(jax.jit(jax.vmap(end))(jnp.array([0.1, 4.0])).diverged)
    [False  True]
    """
    floats = jnp.result_type(float)
    spec = engine.RunSpec(
        noise=noise,
        step_size=jnp.asarray(step_size, floats),
        optimiser=SGD(weight_decay=weight_decay).prepared(),
        observe={},
        average={},
        maximum=dict(maximum or {}),
    )
    if block is None:
        block = engine.block_length(noise, params)
        block = min(block, int(steps)) if validate.concrete(steps) else block
    count = lambda number: jnp.asarray(number, jnp.int32)
    key = validate.as_key("run_traced", key)
    state = engine.start(params, key, spec.optimiser, average=spec.average, maximum=spec.maximum)
    never = count(engine.NEVER)
    state, _ = engine.advance(spec, state, count(steps), never, never, block=block, capacity=0)
    return TracedRun(state.params, state.diverged_block != engine.NEVER, state.maxima)
