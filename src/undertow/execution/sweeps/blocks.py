"""Cut a grid into blocks: rectangular tiles, each computed by one task and stored as one chunk of every array.

The points of a block differ in traced parameters and seeds only, so that a block can be one vmapped program. All blocks
have the same width; those at the edge of the grid are padded.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Tiling", "width_for"]

FEWEST = 16
"""The least number of blocks on processors, or four per worker: fewer show no progress and leave workers idle."""
PROCESSOR_BYTES = 2**28
"""The memory of a block on a processor: blocks larger than its caches are not faster."""
MOST_ALONE = 1000
"""The most blocks of a sweep whose points run one by one: each block is a few files."""


@dataclass(frozen=True)
class Tiling:
    """A grid of `shape` (the axes, then the seeds) in tiles of shape `tile`.

    >>> from undertow.execution.sweeps.blocks import Tiling
    >>> tiling = Tiling.of((4, 6, 10), together=(False, True, True), width=25)
    >>> print(tiling.tile, tiling.width, tiling.count, tiling.region((3, 2, 0)))
    (1, 2, 10) 20 12 (slice(3, 4, None), slice(4, 6, None), slice(0, 10, None))
    """

    shape: tuple[int, ...]
    tile: tuple[int, ...]

    @staticmethod
    def of(shape: Sequence[int], together: Sequence[bool], width: int) -> "Tiling":
        """Return tiles of at most `width` runs along the dimensions that may be `together`: seeds first, then the axes.

        A dimension is cut into parts of nearly equal size.
        """
        tile = [1] * len(shape)
        room = max(1, width)
        for k in reversed(range(len(shape))):
            if together[k]:
                parts = -(-shape[k] // min(room, shape[k]))
                tile[k] = -(-shape[k] // parts)
                room //= tile[k]
        return Tiling(tuple(shape), tuple(tile))

    @property
    def width(self) -> int:
        """The number of runs of a whole block."""
        return math.prod(self.tile)

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of blocks along each dimension."""
        return tuple(-(-n // t) for n, t in zip(self.shape, self.tile, strict=True))

    @property
    def count(self) -> int:
        """The number of blocks."""
        return math.prod(self.grid)

    def blocks(self) -> list[tuple[int, ...]]:
        """Return the indices of all blocks, in order."""
        return list(itertools.product(*(range(n) for n in self.grid)))

    def region(self, block: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the slices of the grid that a block covers."""
        return tuple(slice(b * t, min((b + 1) * t, n)) for b, t, n in zip(block, self.tile, self.shape, strict=True))


def width_for(runs: int, *, batched: bool, run_bytes: int, memory: int, platform: str, slots: int) -> int:
    """Return the runs per block: as many as half the memory of an accelerator holds, or a share of all on processors.

    >>> from undertow.execution.sweeps.blocks import width_for
    >>> width_for(20_000, batched=True, run_bytes=2**20, memory=2**37, platform="gpu", slots=1)
    20000
    >>> width_for(20_000, batched=True, run_bytes=2**20, memory=2**33, platform="cpu", slots=2)
    256
    """
    if not batched:
        return -(-runs // MOST_ALONE)
    if platform != "cpu":
        return max(1, min(-(-runs // slots), memory // 2 // max(1, run_bytes)))
    most = min(PROCESSOR_BYTES, memory // (2 * slots)) // max(1, run_bytes)
    return max(1, min(most, -(-runs // max(FEWEST, 4 * slots))))
