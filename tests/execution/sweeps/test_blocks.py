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
