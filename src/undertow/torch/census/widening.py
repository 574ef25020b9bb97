"""The axes of a symmetry of a narrow network, in a wide network of the same structure."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.layout import Dimensions, Layout, layout_of
from undertow.torch.census.sizes import Candidate, SizeMap

__all__ = ["WideningError", "widen"]

Shape = tuple[int, ...]

EQUAL_PARTS_COST = 4
"""Cost of a part that starts after a number of equal parts, where no named size gives its start."""


class WideningError(ValueError):
    """An axis has no counterpart, or more than one."""


class _Level(NamedTuple):
    """One dimension of a layout, from the finest: chunks of `chunk` indices, one in each period."""

    stride: int
    chunk: int
    period: int
    start: int
    """Where the chunk starts in its period."""
    member: bool
    place: int
    """Position among the dimensions of the generators, or of the members."""


def widen(symmetry: Symmetry, shapes: Mapping[str, Shape], sizes: SizeMap) -> Symmetry:
    """Return a symmetry with the indices of the wide network, in which its parameters have these shapes.

    Raise a `WideningError` if the sizes do not determine it.
    """
    options = [list(_widened(axis, shapes[axis.parameter], sizes)) for axis in symmetry.axes]
    for axis, choices in zip(symmetry.axes, options, strict=True):
        if not choices:
            raise WideningError(f"the indices of {axis} (of {axis.length}) have no counterpart in the model")
    common = set.intersection(*({layout.size for layout, _ in choices} for choices in options))
    if not common:
        raise WideningError(f"the axes of {symmetry.name} have different lengths in the model")
    ranked = sorted((sum(_best(choices, n)[1] for choices in options), n) for n in common)
    if len(ranked) > 1 and ranked[0][0] == ranked[1][0]:
        raise WideningError(f"{symmetry.name} may have {ranked[0][1]} or {ranked[1][1]} generators in the model")
    chosen = [_only(axis, choices, ranked[0][1]) for axis, choices in zip(symmetry.axes, options, strict=True)]
    shape = lambda axis: shapes[axis.parameter]
    axes = [
        replace(axis, index=layout.index(), length=_length(axis, shape(axis)), matrices=_matrices(axis, shape(axis)))
        for axis, layout in zip(symmetry.axes, chosen, strict=True)
    ]
    count = len(symmetry.plus)
    block = _block(symmetry, chosen, sizes)
    return replace(symmetry, plus=tuple(axes[:count]), minus=tuple(axes[count:]), block=block)


def _best(choices: list[tuple[Layout, int]], size: int) -> tuple[Layout, int]:
    return min((choice for choice in choices if choice[0].size == size), key=lambda choice: choice[1])


def _only(axis: Axis, choices: list[tuple[Layout, int]], size: int) -> Layout:
    """Return the simplest layout with so many generators; raise an error if there are two."""
    layout, cost = _best(choices, size)
    if len({other for other, price in choices if other.size == size and price == cost}) > 1:
        raise WideningError(f"the indices of {axis} have more than one counterpart in the model")
    return layout


def _matrices(axis: Axis, shape: Shape) -> int:
    """Return the number of matrices of a parameter in the wide network: experts may be more, fused projections not."""
    experts = axis.matrices > 1 and axis.dimensions <= 3 and not axis.parameter.endswith("in_proj_weight")
    return shape[0] if experts else axis.matrices


def _length(axis: Axis, shape: Shape) -> int:
    return (shape or (1,))[axis.axis] * (_matrices(axis, shape) if axis.by_matrix else 1)


def _widened(axis: Axis, shape: Shape, sizes: SizeMap) -> Iterator[tuple[Layout, int]]:
    """Return the layouts that the axis may have in the wide network, with the costs of their formulas."""
    layout = layout_of(axis.index)
    if layout is None or len(shape or (1,)) != max(axis.dimensions, 1):
        raise WideningError(f"the indices of {axis} are not strided, or it has another number of dimensions")
    levels = _levels(layout, axis.length)
    if levels is None:
        raise WideningError(f"the indices of {axis} overlap")
    forced = {1: (Candidate(1, 0),), axis.length: (Candidate(_length(axis, shape), 0),)}
    needed = list(dict.fromkeys(t for level in levels for t in (level.stride, level.chunk, level.period)))
    options = [forced.get(t) or sizes.candidates(t) for t in needed]
    for choice in itertools.product(*options):
        wide = dict(zip(needed, (candidate.wide for candidate in choice), strict=True))
        cost = sum(candidate.cost for candidate in choice)
        for starts, more in _starts(levels, wide, sizes):
            result = _assembled(levels, wide, starts, layout)
            if result is not None:
                yield result, cost + more


def _levels(layout: Layout, length: int) -> list[_Level] | None:
    """Return the dimensions of a layout, the finest first, with their periods and starts."""
    tagged = [(stride, extent, member, place)
              for member, dimensions in ((False, layout.generators), (True, layout.members))
              for place, (extent, stride) in enumerate(dimensions)]  # fmt: skip
    tagged.sort()
    if not tagged:  # one index
        tagged = [(1, 1, False, -1)]
    periods = [*(stride for stride, *_ in tagged[1:]), length]
    levels, offset = [], layout.offset
    for (stride, extent, member, place), period in reversed(list(zip(tagged, periods, strict=True))):
        chunk = stride * extent
        if stride < 1 or chunk > period:
            return None
        start = min(offset // stride * stride, period - chunk)
        offset -= start
        levels.append(_Level(stride, chunk, period, start, member, place))
    return levels[::-1] if offset == 0 else None


def _starts(levels: list[_Level], wide: dict[int, int], sizes: SizeMap) -> Iterator[tuple[list[int], int]]:
    """Return where the chunks may start in the wide network, with the costs."""
    options = []
    for level in levels:
        chunk, period = wide[level.chunk], wide[level.period]
        if level.start == 0:
            options.append([Candidate(0, 0)])
        elif level.start + level.chunk == level.period:
            options.append([Candidate(period - chunk, 0)])
        else:
            parts, rest = divmod(level.start, level.chunk)
            equal = [Candidate(parts * chunk, EQUAL_PARTS_COST)] if rest == 0 else []
            options.append([*sizes.candidates(level.start), *equal])
    for choice in itertools.product(*options):
        yield [candidate.wide for candidate in choice], sum(candidate.cost for candidate in choice)


def _assembled(levels: list[_Level], wide: dict[int, int], starts: list[int], layout: Layout) -> Layout | None:
    """Return the layout with these sizes, None if they do not fit into each other."""
    generators: list[tuple[int, int]] = [(1, 1)] * len(layout.generators)
    members: list[tuple[int, int]] = [(1, 1)] * len(layout.members)
    for level, start in zip(levels, starts, strict=True):
        stride, chunk, period = wide[level.stride], wide[level.chunk], wide[level.period]
        if chunk % stride or start < 0 or start + chunk > period or start % stride:
            return None
        if level.place >= 0:
            (members if level.member else generators)[level.place] = (chunk // stride, stride)
    return Layout(sum(starts), tuple(generators), tuple(members))


def _block(symmetry: Symmetry, layouts: list[Layout], sizes: SizeMap) -> int:
    """Return the size of the GL blocks in the wide network."""
    size = layouts[0].size
    if symmetry.block in (1, symmetry.size):
        return 1 if symmetry.block == 1 else size
    for axis, layout in zip(symmetry.axes, layouts, strict=True):
        narrow = layout_of(axis.index)
        assert narrow is not None
        for count in range(1, len(narrow.generators)):
            if _extent(narrow.generators[count:]) == symmetry.block:
                return _extent(layout.generators[count:])
    candidates = [c for c in sizes.candidates(symmetry.block) if size % c.wide == 0]
    if not candidates:
        raise WideningError(f"the block size {symmetry.block} of {symmetry.name} has no counterpart in the model")
    if len(candidates) > 1 and candidates[0].cost == candidates[1].cost:
        raise WideningError(
            f"the block size {symmetry.block} of {symmetry.name} may be {candidates[0].wide} or {candidates[1].wide} "
            "in the model"
        )
    return candidates[0].wide


def _extent(dimensions: Dimensions) -> int:
    return prod(extent for extent, _ in dimensions)
