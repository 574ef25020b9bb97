"""Which index of which axis reads or multiplies which other, found by setting indices to zero.

Along a symmetry that scales u by s and v by 1/s, the gradient with respect to v vanishes where u is zero: it is
s times a finite number at u s, for every s. So indices are set to zero by random codes, different in each pass, and
the passes in which the gradient of an index vanishes identify the code of its partner. Zeros are exact in floating
point. This finds how channels run through a flattened image, a concatenation, fused queries, keys and values of any
layout, experts or a low-rank product, without knowing the layer. A coupling is only a candidate: the null space
decides (a GELU couples two layers without a symmetry).
"""

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from undertow.torch._copies import Batch, Loss
from undertow.torch.census.axes import Axis
from undertow.torch.census.candidates import Level, is_bias, with_biases
from undertow.torch.census.codes import Codes, Toggled, varies

__all__ = ["coupled_levels"]

FEWEST_PASSES, FIRST_PASSES, PASSES, MOST_PASSES = 4, 6, 24, 64
"""Number of passes that show whether there is something to find (on long axes, and on others), that decode it, and at
most; passes are added while codes are ambiguous."""
SHORT, LONG = 16, 64
"""Length of an axis below which chance may hide a coupling in the first passes, so that as many more are made, and from
which fewer passes do: two percent of the indices without a partner show a coupling, and in each pass a wrong partner
has the code of an index by chance in three of four cases."""
MOST_BY_CHANCE = 0.05
"""Expected number of wrong partners between two axes below which no more passes are made."""
MOST_PARTNERS = 3
LEAST_REGULAR = 0.8
"""Largest number of partners of one index, and the share of the indices that must have as many."""
MOST_APART = 4
"""Largest number of indices with one partner that are tried apart: a gate and what it multiplies do not move together,
the heads of a group and the pixels of a channel do."""

LEAST_APART = 0.1
"""Share of the generators of a level whose indices must vanish one by one for the level to be too coarse."""

_Maps = dict[tuple[int, int, int, int], np.ndarray]
"""Reader, writer, number of indices of the writer that move together, and rank where an index has several partners (a
gate and what it multiplies): the partner of each index, -1 for none."""


def coupled_levels(
    twin: nn.Module, batch: Batch, loss: Loss, plain: Sequence[Axis], searched: Sequence[Level], seed: int
) -> list[Level]:
    """Return a level for every axis whose indices are coupled one by one, or in pairs, to indices of other axes.

    A few passes show first whether all couplings lie in the levels that are searched anyway; then there is nothing to
    add. Axes that write are set to zero first. Where an axis that reads has no partner then, several layers write what
    it reads: axes that read, and then all equally long axes together, are set to zero too.
    """
    axes = [axis for axis in plain if not is_bias(axis.parameter)]
    axes = [axis for axis in axes if axis.by_matrix or axis.axis == 0 or axis.matrices == 1]
    inputs = [axis for axis in axes if axis.role == "in"]
    others = [axis for axis in axes if axis.role != "in"]
    by_length: dict[int, list[Axis]] = defaultdict(list)
    for axis in others:
        by_length[axis.length].append(axis)
    codes = Codes(twin, batch, loss, [(axis,) for axis in others], axes, seed) if others else None
    if codes is None:
        return []
    shortest = min(axis.length for axis in axes)
    codes.run(FIRST_PASSES if shortest < LONG else FEWEST_PASSES)
    covered = _covered(codes, searched)
    if covered and shortest < SHORT:
        codes.run(FIRST_PASSES)
        covered = _covered(codes, searched)
    maps = {} if covered else _decoded(codes)
    found, writers = _levels(twin, codes, maps), codes
    groups: list[Toggled] = [[(axis,) for axis in inputs], [tuple(same) for same in by_length.values()]]
    for toggled in groups:
        known = [axis for level in (*found, *searched) for axis in level.axes]
        left = _unread(inputs, known, by_length)
        if left:
            codes = Codes(twin, batch, loss, toggled, axes, seed)
            codes.run(FIRST_PASSES)
            if any(varies(codes.zeros[k], codes.valid[k]).any() for k, axis in enumerate(axes) if axis in left):
                found += _levels(twin, codes, _decoded(codes))
    if maps and _unread(inputs, [axis for level in (*found, *searched) for axis in level.axes], by_length):
        found += _levels_of_two_writers(twin, writers, maps)
    return sorted(found, key=lambda level: -level.size)


def _unread(inputs: list[Axis], known: list[Axis], lengths: Container[int]) -> list[Axis]:
    """Return the axes that read, are in no level of their own, and have another length than all axes that write."""
    names = {(axis.parameter, axis.axis) for axis in known if axis.length != axis.size or axis.index.shape[1] > 1}
    return [axis for axis in inputs if axis.length not in lengths and (axis.parameter, axis.axis) not in names]


def _covered(codes: Codes, searched: Sequence[Level]) -> bool:
    """Return whether a searched level holds a partner of every index whose gradient vanishes in some passes."""
    toggled = {_place(axes[0]): number for number, axes in enumerate(codes.toggled)}
    views: dict[_Place, list[tuple[Level, int]]] = defaultdict(list)
    for level in searched:
        for number, axis in enumerate(level.axes):
            views[_place(axis)].append((level, number))
    for reader, seen in enumerate(codes.seen):
        left = varies(codes.zeros[reader], codes.valid[reader])
        if _place(seen) in toggled:  # an output whose square is in the loss vanishes with itself, without a partner
            left &= (codes.zeros[reader] != codes.codes[toggled[_place(seen)]])[:, codes.valid[reader]].any(1)
        for level, number in views[_place(seen)]:
            mine, valid = level.axes[number], codes.valid[reader]
            if not left[mine.index].any():
                continue
            zeros, both = codes.zeros[reader][mine.index][:, :, valid].all(1), np.ones((mine.size, valid.sum()), bool)
            for other in sorted(range(len(level.axes)), key=lambda k, number=number: abs(k - number)):
                writer = toggled.get(_place(level.axes[other]))
                if writer is None or other == number:
                    continue
                if _apart(codes.zeros[reader], codes.codes[writer], mine, level.axes[other], valid):
                    continue
                code = codes.codes[writer][level.axes[other].index][:, :, valid].all(1)
                if code.any() and not (code & ~zeros).any():  # vanishes wherever this partner is zero
                    both = code
                elif not (zeros & ~code).any():  # vanishes only where all writers of a stream are zero
                    both = both & code
                if not (both & ~zeros).any():
                    left[mine.index] = False
                    break
        for level, number in views[_place(seen)] if left.any() else ():
            _drop_dead_units(codes, level, number, reader, left)
        if left.sum() > 0.02 * len(left):
            return False
    return True


def _drop_dead_units(codes: Codes, level: Level, number: int, reader: int, left: np.ndarray) -> None:
    """Clear `left` where what writes an index and what reads it vanish in the same passes: a unit that is not active.

    Both are in the level, side by side.
    """
    seen = {_place(axis): place for place, axis in enumerate(codes.seen)}
    mine, zeros = level.axes[number], codes.zeros[reader]
    for axis in level.axes:
        other = seen.get(_place(axis))
        if other is not None and (axis.role == "in") != (mine.role == "in"):
            valid = codes.valid[reader] & codes.valid[other]
            same = codes.zeros[other][axis.index][:, :, valid].all(1) == zeros[mine.index][:, :, valid].all(1)
            left[mine.index[same.all(1) & valid.any()]] = False


def _apart(zeros: np.ndarray, codes: np.ndarray, mine: Axis, other: Axis, valid: np.ndarray) -> bool:
    """Return whether indices that a level moves together vanish one by one, as those that RoPE does not rotate."""
    if mine.index.shape[1] == 1 or other.index.shape[1] == 1:
        return False
    vanish, code = zeros[mine.index][:, :, valid], codes[other.index][:, :, valid]
    single = ~(code[:, None] & ~vanish[:, :, None]).any(3) & code.any(2)[:, None]
    alone = single.any(2).all(1) & (vanish != vanish[:, :1]).any((1, 2))
    return int(alone.sum()) >= max(2, LEAST_APART * mine.size)


_Place = tuple[str, int, bool]


def _place(axis: Axis) -> _Place:
    return axis.parameter, axis.axis, axis.by_matrix


def _decoded(codes: Codes) -> _Maps:
    """Make passes until partners are certain, and return them."""
    codes.run(max(PASSES - codes.passes, 0))
    while True:
        maps, ambiguous = _decode(codes)
        if not ambiguous or codes.passes >= MOST_PASSES:
            return maps
        codes.run(8)


def _levels(twin: nn.Module, codes: Codes, maps: _Maps) -> list[Level]:
    """Return the levels of all axes that have partners."""
    by_hub: dict[tuple[int, int], list[tuple[Axis, np.ndarray]]] = defaultdict(list)
    branches = _branches(maps, codes.seen)
    for (reader, writer, together, _), partner in maps.items():
        for branch in branches[reader]:
            part = np.where(branch, partner, -1) if together == 1 else np.where(branch[:, None], partner, -1)
            if (part >= 0).any():
                by_hub[writer, together].append((codes.seen[reader], part))
    levels = []
    for (writer, together), readers in by_hub.items():
        hubs, index = codes.toggled[writer], np.arange(codes.toggled[writer][0].length)[:, None]
        if together > 1:
            index, readers = _number_pairs(readers)
            hubs = tuple(replace(hub, fold="pair") for hub in hubs)
        straight = lambda partner, rows=index: np.array_equal(partner, np.arange(len(rows)))
        if len(hubs) == 1 or not all(straight(partner) for _, partner in readers):
            levels += _levels_of(twin, hubs, index, readers)
    return levels


def _levels_of_two_writers(twin: nn.Module, codes: Codes, maps: _Maps) -> list[Level]:
    """Return a level for every two axes that write the same stream, with what reads it."""
    left = {}
    for reader, axis in enumerate(codes.seen):
        single = [p >= 0 if p.ndim == 1 else p[:, 0] >= 0 for key, p in maps.items() if key[0] == reader]
        unread = varies(codes.zeros[reader], codes.valid[reader]) & ~np.any([np.zeros(axis.length, bool), *single], 0)
        if axis.role == "in" and unread.sum() > 1 and codes.valid[reader].sum() >= 8:
            left[reader] = unread
    if not left:
        return []
    codes.run(max(MOST_PASSES - codes.passes, 0))
    found: dict[tuple[int, int], list[tuple[int, int, int, int]]] = defaultdict(list)
    for reader, unread in left.items():
        for k, first, one, second, two in codes.two_writers(reader, unread):
            found[first, second].append((one, two, reader, k))
    levels = []
    for (first, second), rows in found.items():
        pairs = np.unique([row[:2] for row in rows], axis=0)
        number = {tuple(pair): n for n, pair in enumerate(pairs.tolist())}
        readers = {reader: np.full(codes.seen[reader].length, -1) for _, _, reader, _ in rows}
        for one, two, reader, k in rows:
            readers[reader][k] = number[one, two]
        views = [(codes.seen[reader], partner) for reader, partner in readers.items()]
        hubs = [(codes.toggled[n][0], pairs[:, place]) for place, n in enumerate((first, second))]
        writers = [(axis, _places(axis, index)) for axis, index in hubs]
        for (reader, writer, together, _), partner in maps.items():  # what reads one of them before the other is added
            if writer in (first, second) and together == 1:
                places = np.append(writers[int(writer == second)][1], -1)
                if (places[partner] >= 0).any():
                    views.append((codes.seen[reader], places[partner]))
        levels += _levels_of(twin, (), np.arange(len(pairs))[:, None], [*writers, *views])
    return levels


def _places(axis: Axis, index: np.ndarray) -> np.ndarray:
    """Return the map from the indices of an axis to the numbers of the pairs that they are in."""
    partner = np.full(axis.length, -1)
    partner[index] = np.arange(len(index))
    return partner


def _branches(maps: _Maps, seen: list[Axis]) -> dict[int, list[np.ndarray]]:
    """Return the indices of each reader apart by the axes of their partners, as the branches of a concatenation."""
    has: dict[int, list[np.ndarray]] = {reader: [] for reader, *_ in maps}
    for (reader, _, together, _), partner in maps.items():
        has[reader].append(partner >= 0 if together == 1 else partner[:, 0] >= 0)
    result = {}
    for reader, columns in has.items():
        kinds = np.stack(columns, axis=1)
        result[reader] = [(kinds == kind).all(1) for kind in np.unique(kinds[kinds.any(1)], axis=0)]
    return result


def _number_pairs(readers: list[tuple[Axis, np.ndarray]]) -> tuple[np.ndarray, list[tuple[Axis, np.ndarray]]]:
    """Return the pairs of indices of the hub, and the maps as numbers of pairs."""
    pairs = np.unique(np.concatenate([p[p[:, 0] >= 0] for _, p in readers]), axis=0)
    number = {tuple(pair): k for k, pair in enumerate(pairs.tolist())}
    return pairs, [(axis, np.array([number.get(tuple(p), -1) for p in partner.tolist()])) for axis, partner in readers]


def _decode(codes: Codes) -> tuple[_Maps, bool]:
    """Return the partners of indices for pairs of axes, and whether some are ambiguous."""
    maps: _Maps = {}
    ambiguous = False
    for reader, seen in enumerate(codes.seen):
        likely, undecided = codes.likely_writers(reader)
        ambiguous = ambiguous or undecided
        for writer in likely:
            toggled = codes.toggled[writer]
            match = codes.partners(reader, writer)
            if seen in toggled:
                np.fill_diagonal(match, False)
            several, partners = _several_maps(match)
            ambiguous = ambiguous or several or codes.by_chance(reader, writer) > MOST_BY_CHANCE
            for rank, partner in enumerate(partners):
                if (partner >= 0).any():
                    maps[reader, writer, 1, rank] = _completed(partner, seen, toggled[0])
        if seen.role != "in":
            single = [maps[key] >= 0 for key in maps if key[0] == reader]
            left = ~np.any(single, axis=0) if single else np.ones(seen.length, bool)
            for writer, toggled in enumerate(codes.toggled):
                if toggled[0].role != "in" and len(toggled) == 1:
                    pairs, doubtful = codes.pairs(reader, writer, left)
                    ambiguous = ambiguous or doubtful
                    if pairs is not None:
                        maps[reader, writer, 2, 0] = pairs
    return maps, ambiguous


def _several_maps(match: np.ndarray) -> tuple[bool, list[np.ndarray]]:
    """Return whether the partners are ambiguous, and one map for each partner that the indices have."""
    counts = match.sum(1)
    if not counts.any():
        return False, []
    usual = int(np.bincount(counts[counts > 0]).argmax())
    if usual == 1 or usual > MOST_PARTNERS or (counts == usual).sum() < LEAST_REGULAR * (counts > 0).sum():
        partner = _continued(np.where(counts == 1, match.argmax(1), -1), match)
        return bool(((counts > 0) & (partner < 0)).any()), [partner]
    order = np.argsort(~match, axis=1, kind="stable")[:, :usual]
    return bool((counts > usual).any()), list(np.where(counts[:, None] == usual, order, -1).T)


def _continued(partner: np.ndarray, match: np.ndarray) -> np.ndarray:
    """Return the map with ambiguous indices resolved where one of their partners continues that of a neighbour."""
    result = partner.copy()
    for step, order in ((1, range(1, len(result))), (-1, range(len(result) - 2, -1, -1))):
        for k in order:
            before = result[k - step]
            if result[k] < 0 <= before and match[k].any():
                following = [i for i in (before + step, before) if 0 <= i < match.shape[1] and match[k, i]]
                result[k] = following[0] if len(following) == 1 else -1
    return result


def _completed(partner: np.ndarray, seen: Axis, toggled: Axis) -> np.ndarray:
    """Return the map with experts that no sample chose filled in as the others are."""
    matrices = seen.matrices
    if not (seen.by_matrix and toggled.by_matrix and toggled.matrices == matrices):
        return partner
    rows, columns = seen.length // matrices, toggled.length // matrices
    inside, first = partner.reshape(matrices, rows), columns * np.arange(matrices)[:, None]
    own = np.where((inside >= first) & (inside < first + columns), inside - first, -1).max(0)
    return np.where(own < 0, -1, own + first).reshape(-1)


def _levels_of(
    twin: nn.Module, hubs: Sequence[Axis], together: np.ndarray, readers: list[tuple[Axis, np.ndarray]]
) -> list[Level]:
    """Return the levels of the axes of a stream, one for each set of indices (`together`) with like partners."""
    counts = [np.bincount(partner[partner >= 0], minlength=len(together)) for _, partner in readers]
    signature = np.stack(counts, axis=1)
    levels = []
    for kind in np.unique(signature[signature.any(1)], axis=0):
        rows = np.flatnonzero((signature == kind).all(1))
        views = [(axis, _inverse(partner, rows)) for (axis, partner), c in zip(readers, kind, strict=True) if c]
        keep = np.ones(len(rows), bool)
        for axis, index in views:
            if axis in hubs and np.isin(index, together[rows]).all():  # i is the partner of j and j of i: one suffices
                keep &= together[rows].min(1) < index.min(1)
        axes = [replace(hub, index=together[rows[keep]]) for hub in hubs]
        for axis, index in views:
            columns = index.shape[1]
            parts = np.split(index[keep], columns, axis=1) if columns <= MOST_APART else [index[keep]]
            axes += [replace(axis, index=part) for part in parts]
        for complete in (_filled(axes), axes):
            if complete is not None and keep.any() and len(axes) > 1:
                levels.append(Level(f"partners of {complete[0]}", tuple(with_biases(twin, complete))))
    return levels


def _filled(axes: list[Axis]) -> list[Axis] | None:
    """Return the axes with the rows that are missing in a regular sequence, None if there are none.

    A row is missing if an index was decoded wrongly by chance.
    """
    rows = axes[0].index[:, 0]
    if len(rows) < 3 or axes[0].index.shape[1] > 1 or (missing := rows[-1] - rows[0] + 1 - len(rows)) == 0:
        return None
    every = np.arange(rows[0], rows[-1] + 1)
    if missing > 0.3 * len(every):
        return None
    result = []
    for axis in axes:
        slope = (axis.index[-1] - axis.index[0]) // (rows[-1] - rows[0])
        if not np.array_equal(axis.index, axis.index[0] + slope * (rows - rows[0])[:, None]):
            return None
        result.append(replace(axis, index=axis.index[0] + slope * (every - rows[0])[:, None]))
    return result


def _inverse(partner: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the indices whose partner is each of these rows: (rows, indices)."""
    order = np.argsort(partner, kind="stable")
    return order[np.isin(partner[order], rows)].reshape(len(rows), -1)
