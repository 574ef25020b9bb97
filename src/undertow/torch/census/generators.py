"""Which generators of symmetries are sums of others: a coarser or a shorter version of what is already known."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from undertow.torch.census.axes import Axis, Symmetry

__all__ = ["Generators", "moves_nothing", "signed", "sums_imply"]

_Row = tuple[tuple[str, int, int], float]
"""A row of a parameter (name, axis, index), with the shift of its layer."""
SAMPLE = 5
"""Number of generators of a symmetry that are compared before all of them are."""


def signed(symmetry: Symmetry) -> list[tuple[Axis, int]]:
    """Return the axes with the exponents by which they scale."""
    return [(axis, axis.power) for axis in symmetry.plus] + [(axis, -axis.power) for axis in symmetry.minus]


def _coefficients(symmetry: Symmetry, generator: int) -> dict[_Row, int]:
    """Return the rows that a generator scales, with their exponents."""
    rows: dict[_Row, int] = defaultdict(int)
    for axis, power in signed(symmetry):
        for key in axis.keys(generator):
            rows[key, axis.shift] += power
    return {row: power for row, power in rows.items() if power}


def _sample(symmetry: Symmetry) -> list[int]:
    """Return some generators that stand for all."""
    return np.unique(np.linspace(0, symmetry.size - 1, min(SAMPLE, symmetry.size)).astype(int)).tolist()


def sums_imply(known: Sequence[Symmetry], symmetry: Symmetry, without_effect: Sequence[Axis] = ()) -> bool:
    """Return whether a symmetry of whole parameters is a sum of known symmetries, each moved by one amount.

    To scale all indices of one axis of a parameter is the same as to scale all those of another, for each of its
    matrices. What some axes do is without effect.
    """
    free = [replace(symmetry, plus=(axis,), minus=()) for axis in without_effect]
    columns, target = [_total(one) for one in [*known, *free]], _total(symmetry)
    lengths = {key: len(values) for column in [*columns, target] for key, values in column.items()}
    axes: dict[tuple[str, float], list[tuple[str, int, float]]] = defaultdict(list)
    for key in lengths:
        axes[key[0], key[2]].append(key)
    matrices = {axis.parameter: axis.matrices for one in [*known, *free, symmetry] for axis in one.axes}
    for first, *others in axes.values():
        every = np.repeat(np.eye(matrices[first[0]]), lengths[first] // matrices[first[0]], axis=1)
        for key in others:
            again = np.repeat(np.eye(matrices[key[0]]), lengths[key] // matrices[key[0]], axis=1)
            columns += [{first: one, key: -other} for one, other in zip(every, again, strict=True)]
    matrix = _distinct_rows([*columns, target])
    best = np.linalg.lstsq(np.asarray(matrix[:, :-1], float), np.asarray(matrix[:, -1], float), rcond=None)[0]
    return bool(np.abs(matrix[:, :-1] @ best - matrix[:, -1]).max() <= 1e-6)


def _total(symmetry: Symmetry) -> dict[tuple[str, int, float], np.ndarray]:
    """Return the sum of all generators: exponents of the indices by parameter, axis and shift."""
    total: dict[tuple[str, int, float], np.ndarray] = {}
    for axis, power in signed(symmetry):
        copies = 1 if axis.by_matrix or axis.axis == 0 else axis.matrices
        values = np.bincount(axis.index.reshape(-1), minlength=axis.length) * power
        key = (axis.parameter, axis.axis, axis.shift)
        total[key] = total.get(key, 0) + np.tile(values, copies)
    return total


def _distinct_rows(columns: Sequence[dict[tuple[str, int, float], np.ndarray]]) -> np.ndarray:
    """Return the matrix of these columns without repeated rows; the matrix of all indices is never formed."""
    held: dict[tuple[str, int, float], list[int]] = defaultdict(list)
    for number, column in enumerate(columns):
        for key in column:
            held[key].append(number)
    parts = []
    for key, numbers in held.items():
        values = np.unique(np.stack([columns[n][key] for n in numbers], axis=1), axis=0)
        part = np.zeros((len(values), len(columns)))
        part[:, numbers] = values
        parts.append(part)
    return np.unique(np.concatenate(parts), axis=0)


class _RowIndex:
    """Which generators of which symmetries scale a row, without a table of all rows."""

    def __init__(self) -> None:
        self._maps: dict[tuple[str, int, float], list[tuple[int, np.ndarray]]] = defaultdict(list)

    def insert(self, number: int, symmetry: Symmetry) -> None:
        """Add the generators of a symmetry."""
        for axis in symmetry.axes:
            generator = np.full(axis.length, -1)
            generator[axis.index] = np.arange(axis.size)[:, None]
            copies = 1 if axis.by_matrix or axis.axis == 0 else axis.matrices
            self._maps[axis.parameter, axis.axis, axis.shift].append((number, np.tile(generator, copies)))

    def remove(self, number: int) -> None:
        """Remove a symmetry."""
        for key, maps in self._maps.items():
            self._maps[key] = [pair for pair in maps if pair[0] != number]

    def at(self, row: _Row) -> set[tuple[int, int]]:
        """Return pairs (number of the symmetry, generator)."""
        (parameter, axis, index), shift = row
        maps = self._maps.get((parameter, axis, shift), ())
        return {(number, int(generator[index])) for number, generator in maps if generator[index] >= 0}


def _moves_twice(symmetry: Symmetry) -> bool:
    """Return whether a symmetry moves a row twice."""
    rows: dict[tuple[str, int], list[np.ndarray]] = defaultdict(list)
    for axis in symmetry.axes:
        copies = 1 if axis.by_matrix or axis.axis == 0 else axis.matrices
        places = axis.index.reshape(-1) + axis.length * np.arange(copies)[:, None]
        rows[axis.parameter, axis.axis].append(places.reshape(-1))
    return any(len(np.unique(all_rows := np.concatenate(parts))) < len(all_rows) for parts in rows.values())


def moves_nothing(symmetry: Symmetry, generator: int) -> bool:
    """Return whether a generator scales all indices of an axis against all of another axis of the same parameter."""
    part = lambda side: tuple(replace(axis, index=axis.index[generator : generator + 1]) for axis in side)
    totals = _total(replace(symmetry, plus=part(symmetry.plus), minus=part(symmetry.minus)))
    matrices = {axis.parameter: axis.matrices for axis in symmetry.axes}
    sums: dict[tuple[str, float], np.ndarray] = {}
    for (parameter, _, shift), values in totals.items():
        parts = values.reshape(matrices[parameter], -1)
        if (parts != parts[:, :1]).any():
            return False
        sums[parameter, shift] = sums.get((parameter, shift), 0) + parts[:, 0]
    return not any(total.any() for total in sums.values())


class Generators:
    """The generators of known symmetries, and of new ones that are added if they are independent of them."""

    def __init__(self, known: Sequence[Symmetry]):
        self._by_row = _RowIndex()
        self._symmetries: dict[int, Symmetry] = {}
        self._new: list[int] = []
        for symmetry in known:
            self._insert(symmetry)

    def _insert(self, symmetry: Symmetry) -> int:
        number = len(self._symmetries)
        self._symmetries[number] = symmetry
        self._by_row.insert(number, symmetry)
        return number

    def add(self, symmetry: Symmetry) -> None:
        """Add a symmetry, or those of its generators that are not implied. What it completes is dropped.

        A candidate that moves a row both ways is not a symmetry of rows and left out, as is one that moves nothing.
        """
        nothing = lambda generator: moves_nothing(symmetry, generator)
        if _moves_twice(symmetry) or all(map(nothing, _sample(symmetry))):
            return
        implied = [self.implied(symmetry, generator) for generator in _sample(symmetry)]
        if all(implied):
            return
        if any(implied):
            alone = Generators([symmetry])
            for number in self._overlapping(symmetry):
                part = self._symmetries[number]
                if all(alone.implied(part, generator) for generator in _sample(part)):
                    self._remove(number)
            left = [k for k in range(symmetry.size) if not self.implied(symmetry, k)]
            plus, minus = (
                tuple(replace(axis, index=axis.index[left]) for axis in side)
                for side in (symmetry.plus, symmetry.minus)
            )
            symmetry = replace(symmetry, plus=plus, minus=minus)
        self._new.append(self._insert(symmetry))

    def _overlapping(self, symmetry: Symmetry) -> list[int]:
        """Return the added symmetries that share a row with generators of a symmetry."""
        rows = (row for k in range(symmetry.size) for row in _coefficients(symmetry, k))
        return sorted({number for row in rows for number, _ in self._by_row.at(row) if number in self._new})

    def _remove(self, number: int) -> None:
        self._new.remove(number)
        self._by_row.remove(number)

    def implied(self, symmetry: Symmetry, generator: int, without: int | None = None) -> bool:
        """Return whether a generator is a sum of generators of the symmetries, or does nothing at all."""
        target = _coefficients(symmetry, generator)
        if not target:
            return True
        others = {pair for row in target for pair in self._by_row.at(row) if pair[0] != without}
        if not others:
            return False
        columns = [_coefficients(self._symmetries[number], other) for number, other in sorted(others)]
        place = {row: k for k, row in enumerate(dict.fromkeys([*target, *(r for c in columns for r in c)]))}
        matrix, vector = np.zeros((len(place), len(columns))), np.zeros(len(place))
        for column, rows in enumerate(columns):
            for row, power in rows.items():
                matrix[place[row], column] = power
        for row, power in target.items():
            vector[place[row]] = power
        best = np.linalg.lstsq(matrix, vector, rcond=None)[0]
        return bool(np.abs(matrix @ best - vector).max() <= 1e-6)

    def without_implied(self) -> list[Symmetry]:
        """Return the symmetries that were added, without those that others imply, as parts of a longer one."""
        for number in sorted(self._new, key=lambda number: self._symmetries[number].size):
            symmetry = self._symmetries[number]
            if all(self.implied(symmetry, k, without=number) for k in _sample(symmetry)):
                self._remove(number)
        return [self._symmetries[number] for number in self._new]
