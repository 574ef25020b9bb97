"""Lanes of seeds: how many seeds advance together, on which threads, and how far per chunk."""

import math
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._device import device
from undertow.noise.base import AbstractNoise

__all__ = ["LANE_WIDTH", "ChunkPlan", "LaneThreads", "lane_width", "power_of_two"]

LANE_WIDTH = 16
"""Seeds that advance together on a CPU. Fixed, because another width rounds differently in the last bits."""

CHUNK_SECONDS = 0.5
MOST_BLOCKS = 2**31
"""The most blocks per chunk; no run is longer. Without this limit the number would grow without bound when a full
buffer of observations ends chunks early."""
ACCELERATOR_LANE_BYTES = 16 * 2**30


def lane_width(function: str, width: int | None, seeds: int, noise: AbstractNoise, params: PyTree, block: int) -> int:
    """Return the number of seeds per lane: `width` if given, else 16 on a CPU and as many as fit on an accelerator."""
    if width is not None:
        return validate.positive_integer(function, "lane_width", width)
    if device().platform == "cpu":
        return LANE_WIDTH
    one = jax.eval_shape(lambda: noise.randomness(jax.random.key(0), 1, params))
    each = block * trees.floats_bytes(one) + 8 * trees.floats_bytes(params)
    return min(2 ** math.ceil(math.log2(seeds)), power_of_two(ACCELERATOR_LANE_BYTES // max(1, each)))


def power_of_two(number: int) -> int:
    """Return the largest power of two up to `number`, at least 1."""
    return 2 ** max(0, int(number).bit_length() - 1)


class ChunkPlan:
    """The length of the next chunk: about CHUNK_SECONDS, up to the end of a block, within the buffer's capacity."""

    def __init__(self, block: int):
        self.block = block
        self.blocks = 1
        self.chunks = 0
        self.since = 0.0

    def next(self, now: int, goal: int, due: np.ndarray, capacity: int) -> tuple[int, int]:
        """Return the last step of the chunk and the number of observations in it."""
        elapsed = time.perf_counter() - self.since
        if self.chunks == 1:  # the time of the first chunk is that of the compiler
            self.blocks = 4
        elif self.chunks > 1:
            growth = min(8.0, max(0.25, CHUNK_SECONDS / max(elapsed, 1e-9)))
            self.blocks = min(MOST_BLOCKS, max(1, int(self.blocks * growth)))
        self.chunks += 1
        self.since = time.perf_counter()
        stop = min(goal, (now // self.block + self.blocks) * self.block)
        if len(due) > capacity:
            stop = min(stop, int(due[capacity]) - 1)
        return stop, int(np.searchsorted(due, stop, side="right"))


class LaneThreads:
    """Threads that advance lanes on all cores of a CPU; XLA releases the interpreter while it computes.

    With one lane or on an accelerator the lanes run in the calling thread.
    """

    def __init__(self, lanes: int):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.count = min(lanes, cores) if device().platform == "cpu" else 1
        self.pool: ThreadPoolExecutor | None = None
        self.compiled = False

    def __enter__(self) -> "LaneThreads":
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
        """Return function(lane) for every lane. The very first call runs alone, so that nothing compiles twice."""
        lanes = list(lanes)
        if self.pool is None:
            return [function(lane) for lane in lanes]
        head = [] if self.compiled else [function(lanes[0])]
        self.compiled = True
        futures = [self.pool.submit(function, lane) for lane in lanes[len(head) :]]
        return head + [future.result() for future in futures]


def _settings() -> list:
    return [getattr(jax.config, name, None) for name in sorted(jax.config.values)]
