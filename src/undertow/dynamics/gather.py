"""Observations and final params of all lanes of a run, put together on the host."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from undertow.dynamics import engine

__all__ = ["Record", "gather", "join_lanes", "join_seeds", "stack_chunks"]

Record = tuple[tuple[int, ...], dict[str, PyTree]]
"""The observed steps and the observations at them."""


def stack_chunks(chunks: list[PyTree]) -> PyTree:
    """Return the observations of one lane in all chunks, along one axis of times."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *chunks) if len(chunks) > 1 else chunks[0]


def join_lanes(lanes: list[PyTree], steps: list[int], before: Record, seeds: int | None) -> Record:
    """Put lanes side by side as (seeds, times, ...) and append them to the record before."""

    def leaf(*parts: np.ndarray) -> np.ndarray:
        if seeds is None:
            return parts[0]
        return np.moveaxis(np.concatenate(parts, axis=1)[:, :seeds], 0, 1)

    observed, means = jax.tree.map(leaf, *lanes)
    new = {**observed, **means}
    steps_before, old = before
    if steps_before:
        axis = 0 if seeds is None else 1
        new = jax.tree.map(lambda past, more: np.concatenate([past, more], axis=axis), old, new)
    return steps_before + tuple(steps), new


def join_seeds(lanes: list[PyTree], seeds: int) -> PyTree:
    """Return arrays of all lanes along one axis of seeds. NumPy joins them: JAX compiles one program per number of
    lanes, which takes minutes for thousands."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate([np.asarray(x) for x in leaves])[:seeds]), *lanes)


def gather(
    lanes: tuple[engine.State, ...],
    nonfinite: list[np.ndarray],
    steps: np.ndarray,
    observed: dict[str, PyTree],
    seeds: int | None,
) -> tuple[PyTree, np.ndarray, np.ndarray, dict[str, PyTree]]:
    """Return params, diverged, diverged_at (in steps of the engine) and the observations, NaN after divergence.

    `nonfinite` has the first non-finite step of every trajectory of each lane, NEVER or more where there is none.
    """
    if seeds is None:
        params = lanes[0].params
        block, at = np.asarray(lanes[0].diverged_block), nonfinite[0]
    else:
        params = join_seeds([lane.params for lane in lanes], seeds)
        block = np.concatenate([np.asarray(lane.diverged_block) for lane in lanes])[:seeds]
        at = np.concatenate(nonfinite)[:seeds]
    diverged = np.asarray(block < engine.NEVER)
    diverged_at = np.where(diverged, at, -1)
    if np.any(diverged):
        after = diverged[..., None] & (steps >= diverged_at[..., None])
        observed = jax.tree.map(lambda x: _blank(x, after), observed)
    return params, diverged, diverged_at, observed


def _blank(values: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Set values to NaN where `after` (seeds, times); whole numbers and flags become floats to hold it."""
    values = values.astype(np.result_type(values, np.float32)) if values.dtype.kind not in "fc" else values.copy()
    values[after] = np.nan
    return values
