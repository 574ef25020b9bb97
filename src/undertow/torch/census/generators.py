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

    To scale all indices of one axis of a parameter is the same as to scale all those of another. What some axes do
    is without effect.
    """
    free = [replace(symmetry, plus=(axis,), minus=()) for axis in without_effect]
    columns = [_total(one) for one in [*known, *free]]
    lengths = {key: len(values) for column in [*columns, _total(symmetry)] for key, values in column.items()}
    axes: dict[tuple[str, float], list[tuple[str, int, float]]] = defaultdict(list)
    for key in lengths:
        axes[key[0], key[2]].append(key)
    for same in axes.values():
        columns += [{same[0]: np.ones(lengths[same[0]]), key: -np.ones(lengths[key])} for key in same[1:]]
    stack = lambda column: np.concatenate([column.get(key, np.zeros(n)) for key, n in lengths.items()])
    matrix = np.unique(np.stack([stack(column) for column in [*columns, _total(symmetry)]], axis=1), axis=0)
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
        self._by_row: dict[_Row, set[tuple[int, int]]] = defaultdict(set)
        self._symmetries: dict[int, Symmetry] = {}
        self._new: list[int] = []
        for symmetry in known:
            self._insert(symmetry)

    def _insert(self, symmetry: Symmetry) -> int:
        number = len(self._symmetries)
        self._symmetries[number] = symmetry
        for generator in range(symmetry.size):
            for row in _coefficients(symmetry, generator):
                self._by_row[row].add((number, generator))
        return number

    def add(self, symmetry: Symmetry) -> None:
        """Add a symmetry, or those of its generators that are not implied. What it completes is dropped.

        A candidate that moves a row both ways is not a symmetry of rows and left out, as is one that moves nothing.
        """
        keys = [key for k in range(symmetry.size) for axis in symmetry.axes for key in axis.keys(k)]
        if len(set(keys)) < len(keys) or all(moves_nothing(symmetry, generator) for generator in _sample(symmetry)):
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
        return sorted({number for row in rows for number, _ in self._by_row.get(row, ()) if number in self._new})

    def _remove(self, number: int) -> None:
        self._new.remove(number)
        for pairs in self._by_row.values():
            pairs -= {pair for pair in pairs if pair[0] == number}

    def implied(self, symmetry: Symmetry, generator: int, without: int | None = None) -> bool:
        """Return whether a generator is a sum of generators of the symmetries, or does nothing at all."""
        target = _coefficients(symmetry, generator)
        if not target:
            return True
        others = {pair for row in target for pair in self._by_row.get(row, ()) if pair[0] != without}
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
