"""Index arrays of axes as strided layouts: an offset, and extents with strides for the generators and their members.

The indices of an axis are arithmetic in all common layers: a part of a fused axis, heads, groups of heads, RoPE pairs.
A layout stores such an array in a few numbers, and its extents can be scaled to a network of another width.
"""

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Layout", "layout_of"]

Dimensions = tuple[tuple[int, int], ...]
"""Pairs (extent, stride), the slowest first."""


@dataclass(frozen=True)
class Layout:
    """An index array as offset + sum of (position along each dimension) * stride.

    >>> import numpy as np
    >>> from undertow.torch.census.layout import Layout
    >>> pairs = Layout(4, generators=((2, 1),), members=((2, 2),))
    >>> pairs.index().tolist()
    [[4, 6], [5, 7]]
    """

    offset: int
    generators: Dimensions
    members: Dimensions

    def index(self) -> np.ndarray:
        """Return the array of shape (generators, members)."""
        return self.offset + _positions(self.generators)[:, None] + _positions(self.members)[None]

    @property
    def size(self) -> int:
        """Number of generators."""
        return math.prod(extent for extent, _ in self.generators)


def _positions(dimensions: Dimensions) -> np.ndarray:
    places = np.zeros(1, dtype=np.int64)
    for extent, stride in dimensions:
        places = (places[:, None] + stride * np.arange(extent, dtype=np.int64)).reshape(-1)
    return places


def layout_of(index: np.ndarray) -> Layout | None:
    """Return the layout of an index array with the fewest dimensions, None if the array is not strided.

    >>> import numpy as np
    >>> from undertow.torch.census.layout import layout_of
    >>> layout_of(np.array([[0, 2], [1, 3], [4, 6], [5, 7]]))
    Layout(offset=0, generators=((2, 4), (2, 1)), members=((2, 2),))
    """
    if not index.size:
        return None
    generators, members = _dimensions(index[:, 0]), _dimensions(index[0])
    if generators is None or members is None:
        return None
    layout = Layout(int(index[0, 0]), generators, members)
    return layout if np.array_equal(layout.index(), index) else None


def _dimensions(places: np.ndarray) -> Dimensions | None:
    """Return the extents and strides of a sequence, the longest arithmetic runs first."""
    dimensions: Dimensions = ()
    while len(places) > 1:
        steps = np.diff(places)
        other = np.flatnonzero(steps != steps[0])
        run = int(other[0]) + 1 if len(other) else len(places)
        if len(places) % run or run == 1:
            return None
        blocks = places.reshape(-1, run)
        if np.any(blocks - blocks[:, :1] != blocks[0] - blocks[0, 0]):
            return None
        dimensions = ((run, int(steps[0])), *dimensions)
        places = blocks[:, 0]
    return dimensions
