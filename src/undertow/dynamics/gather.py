"""Observations and final params of all lanes of a run, put together on the host."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from undertow.dynamics import engine

__all__ = ["Observations", "Record", "gather", "join_seeds"]

Record = tuple[np.ndarray, dict[str, PyTree]]
"""The observed steps and the observations at them."""


class Observations:
    """The observations of a run, filled chunk by chunk. The arrays have their final size from the first chunk on.

    `before` is the record of the steps before, `due` has the steps at which observations are to come. The arrays have
    the axes (seeds, times, ...), and (times, ...) for a single run.
    """

    def __init__(self, before: Record, due: np.ndarray, seeds: int | None):
        self.before, self.due, self.seeds = before, due, seeds
        self.taken = 0
        self._arrays: dict[str, PyTree] | None = None

    def put(self, lanes: Sequence[tuple[dict[str, PyTree], dict[str, PyTree]]], count: int) -> None:
        """Add `count` observations and means of every lane, with the axes (times, seeds of the lane, ...)."""
        chunks = [{**observed, **means} for observed, means in lanes]
        if self._arrays is None:
            self._arrays = self._allocate(chunks[0])
        self._write(chunks, count)
        self.taken += count

    def record(self) -> Record:
        """Return the steps and observations so far; fewer than are due after Ctrl-C."""
        steps, old = self.before
        end = len(steps) + self.taken
        every = np.concatenate([steps, self.due[: self.taken]])
        if self._arrays is None:
            return every, old
        return every, jax.tree.map(lambda array: array[self._at(0, end)], self._arrays)

    def _at(self, begin: int, end: int) -> tuple[slice, ...]:
        times = slice(begin, end)
        return (times,) if self.seeds is None else (slice(None), times)

    def _allocate(self, chunk: PyTree) -> dict[str, PyTree]:
        steps, old = self.before
        times = len(steps) + len(self.due)

        def empty(leaf: np.ndarray) -> np.ndarray:
            shape = (times, *leaf.shape[1:]) if self.seeds is None else (self.seeds, times, *leaf.shape[2:])
            return np.empty(shape, leaf.dtype)

        def begin(past: np.ndarray, leaf: np.ndarray) -> np.ndarray:
            array = empty(leaf)
            array[self._at(0, len(steps))] = past
            return array

        return jax.tree.map(begin, old, chunk) if len(steps) else jax.tree.map(empty, chunk)

    def _write(self, chunks: list[dict[str, PyTree]], count: int) -> None:
        begin = len(self.before[0]) + self.taken
        place = self._at(begin, begin + count)

        def write(array: np.ndarray, *parts: np.ndarray) -> None:
            if self.seeds is None:
                array[place] = parts[0]
                return
            first = 0
            for part in parts:
                own = min(part.shape[1], self.seeds - first)  # the last lane may be padded
                array[first : first + own, place[1]] = np.moveaxis(part[:, :own], 0, 1)
                first += own

        jax.tree.map(write, self._arrays, *chunks)


def join_seeds(lanes: list[PyTree], seeds: int) -> PyTree:
    """Return arrays of all lanes along one axis of seeds. NumPy joins them: JAX compiles one program per number of
    lanes, which takes minutes for thousands, and `jnp.asarray` one per shape."""
    join = lambda *leaves: jax.device_put(np.concatenate([np.asarray(x) for x in leaves])[:seeds])
    return jax.tree.map(join, *lanes)


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
