"""The grid is cut into blocks that cover it once and fit the memory."""

import numpy as np
import pytest

from undertow.execution.sweeps.blocks import Tiling, width_for


@pytest.mark.parametrize("width", [1, 7, 12, 60, 10_000])
def test_tiles_cover_the_grid_once(width):
    tiling = Tiling.of((3, 5, 12), together=(False, True, True), width=width)
    assert tiling.width <= width
    count = np.zeros(tiling.shape, int)
    for block in tiling.blocks():
        count[tiling.region(block)] += 1
    assert (count == 1).all()
    assert tiling.tile[0] == 1
    assert len(tiling.blocks()) == tiling.count


def test_blocks_fit_the_memory():
    for run_bytes in (10, 10**6, 10**12):
        for platform in ("cpu", "gpu"):
            width = width_for(5000, batched=True, run_bytes=run_bytes, memory=2**34, platform=platform, slots=2)
            assert width == 1 or width * run_bytes <= 2**33
            assert 1 <= width <= 5000


def test_seeds_fill_a_block_before_the_axes():
    """A block of 24 runs has all 12 seeds of 2 points, and none of the static axis beside it."""
    assert Tiling.of((3, 5, 12), together=(False, True, True), width=24).tile == (1, 2, 12)
    assert Tiling.of((3, 5, 12), together=(True, False, True), width=24).tile == (2, 1, 12)


def test_dimensions_are_cut_into_parts_of_nearly_equal_size():
    """10 runs in blocks of at most 6 are 5 and 5, not 6 and 4."""
    tiling = Tiling.of((10,), together=(True,), width=6)
    assert (tiling.tile, tiling.grid) == ((5,), (2,))


def test_the_last_block_ends_with_the_grid():
    tiling = Tiling((5, 3), (2, 3))
    assert tiling.blocks() == [(0, 0), (1, 0), (2, 0)]
    assert tiling.region((2, 0)) == (slice(4, 5), slice(0, 3))
    assert (tiling.width, tiling.count) == (6, 3)


def test_a_grid_of_one_run_is_one_block():
    tiling = Tiling.of((1, 1), together=(True, True), width=0)
    assert (tiling.tile, tiling.blocks()) == ((1, 1), [(0, 0)])


def test_points_that_run_alone_share_a_thousand_blocks():
    alone = lambda runs: width_for(runs, batched=False, run_bytes=0, memory=0, platform="cpu", slots=1)
    assert [alone(runs) for runs in (1, 1000, 1001, 5000)] == [1, 1, 2, 5]


@pytest.mark.parametrize(("slots", "width"), [(1, 100), (4, 100), (8, 50)])
def test_on_processors_there_are_sixteen_blocks_or_four_per_worker(slots, width):
    assert width_for(1600, batched=True, run_bytes=1, memory=2**34, platform="cpu", slots=slots) == width


def test_an_accelerator_computes_everything_at_once_if_half_its_memory_holds_it():
    width = lambda run_bytes: width_for(1000, batched=True, run_bytes=run_bytes, memory=2**20, platform="gpu", slots=1)
    assert width(0) == 1000
    assert width(2**12) == 2**19 // 2**12
    assert width(2**30) == 1
