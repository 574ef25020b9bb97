"""Layouts reproduce index arrays exactly, with as few dimensions as possible."""

import numpy as np
import pytest

from undertow.torch.census.layout import Layout, layout_of

pytestmark = pytest.mark.torch

heads = np.arange(4 * 3 * 6).reshape(4, 3, 6)
ARRAYS = {
    "an axis": (np.arange(12)[:, None], 1, 0),
    "a part": (np.arange(5, 11)[:, None], 1, 0),
    "a whole axis": (np.arange(12)[None], 0, 1),
    "one index": (np.array([[7]]), 0, 0),
    "groups of heads": (heads.transpose(0, 2, 1).reshape(24, 3), 2, 1),
    "halves of heads": (np.arange(24).reshape(4, 2, 3).transpose(0, 2, 1).reshape(-1, 2), 2, 1),
    "neighbours": (np.arange(24).reshape(-1, 2), 1, 1),
    "interleaved by head": (heads[:, 1].reshape(-1, 1), 2, 0),
    "pairs in groups": (heads.reshape(4, 3, 2, 3).transpose(0, 3, 2, 1).reshape(12, -1), 2, 2),
    "backwards": (np.arange(6)[::-1][:, None], 1, 0),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_layout_has_the_indices_and_the_fewest_dimensions(name):
    index, generators, members = ARRAYS[name]
    layout = layout_of(index)
    assert layout is not None
    np.testing.assert_array_equal(layout.index(), index)
    assert layout.index().dtype == np.int64
    assert (len(layout.generators), len(layout.members), layout.size) == (generators, members, len(index))


def test_random_layouts_are_recovered():
    """Extents and strides are drawn such that dimensions do not overlap; adjacent ones may merge."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 5))
        stride, dimensions = 1, []
        for _ in range(count):
            extent = int(rng.integers(2, 5))
            dimensions.append((extent, stride))
            stride *= extent * int(rng.integers(1, 3))
        cut = int(rng.integers(0, count + 1))
        order = rng.permutation(count)
        shuffled = tuple(dimensions[k] for k in order)
        drawn = Layout(int(rng.integers(0, 9)), shuffled[:cut], shuffled[cut:])
        found = layout_of(drawn.index())
        assert found is not None
        np.testing.assert_array_equal(found.index(), drawn.index())


@pytest.mark.parametrize("index", [[[0], [1], [3]], [[0, 1], [2, 4]], [[0], [1], [2], [5], [6], [8]]])
def test_other_arrays_have_no_layout(index):
    assert layout_of(np.array(index)) is None
