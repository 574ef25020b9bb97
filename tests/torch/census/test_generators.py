"""Generators that are sums of others."""

import math

import numpy as np
import pytest

from undertow.torch import Axis, Symmetry
from undertow.torch.census.generators import Generators, moves_nothing, signed, sums_imply

pytestmark = pytest.mark.torch


def rows(name, axis, index, length, **facts):
    return Axis(name, axis, np.asarray(index), length, **facts)


def scales(plus, minus=()):
    return Symmetry("", tuple(plus), tuple(minus), 1, True, math.inf)


FINE = scales([rows("a", 0, [[0], [1], [2], [3]], 4)], [rows("b", 1, [[0], [1], [2], [3]], 4)])


def test_a_coarser_version_is_implied_and_another_is_not():
    found = Generators([FINE])
    found.add(scales([rows("a", 0, [[0, 1], [2, 3]], 4)], [rows("b", 1, [[0, 1], [2, 3]], 4)]))
    assert found.without_implied() == []
    other = scales([rows("a", 0, [[0, 1], [2, 3]], 4)], [rows("b", 1, [[1, 2], [0, 3]], 4)])
    found.add(other)
    assert found.without_implied() == [other]


def test_a_complete_family_replaces_a_part_of_it():
    found = Generators([])
    part = scales([rows("a", 0, [[0], [2]], 4)], [rows("b", 1, [[0], [2]], 4)])
    found.add(part)
    found.add(FINE)
    (kept,) = found.without_implied()
    assert kept.size == 4


def test_only_new_generators_are_added():
    found = Generators([scales([rows("a", 0, [[0], [1]], 4)], [rows("b", 1, [[0], [1]], 4)])])
    found.add(FINE)
    (kept,) = found.without_implied()
    assert kept.plus[0].index.tolist() == [[2], [3]]


def test_a_row_that_would_move_both_ways_is_left_out():
    found = Generators([])
    found.add(scales([rows("a", 0, [[0], [1]], 4)], [rows("a", 0, [[1], [2]], 4)]))
    assert found.without_implied() == []


def test_an_axis_of_all_matrices_is_the_sum_over_matrices():
    each = {"dimensions": 3, "matrices": 2, "by_matrix": True}
    found = Generators([scales([rows("w", 1, np.arange(6)[:, None], 6, **each)])])
    found.add(scales([rows("w", 1, np.arange(3)[:, None], 3, dimensions=3, matrices=2)]))
    assert found.without_implied() == []


def test_whole_parameters_that_sums_of_families_imply():
    whole = lambda name, axis, n: rows(name, axis, np.arange(n)[None], n)
    assert sums_imply([FINE], scales([whole("a", 0, 4)], [whole("b", 0, 7)]))  # all of one axis is all of another
    assert not sums_imply([FINE], scales([whole("a", 0, 4)]))
    assert sums_imply([FINE], scales([whole("a", 0, 4)]), [whole("b", 1, 4)])
    assert signed(FINE)[1][1] == -1


def test_one_axis_against_another_of_the_same_parameter_moves_nothing():
    whole = lambda axis, n: rows("w", axis, np.arange(n)[None], n)
    assert moves_nothing(scales([whole(0, 4)], [whole(1, 3)]), 0)
    assert not moves_nothing(scales([whole(0, 4)], [rows("w", 1, [[0, 1]], 3)]), 0)
    each = {"dimensions": 3, "matrices": 2, "by_matrix": True}
    stacked = scales([rows("w", 1, [[0, 1, 2], [3, 4, 5]], 6, **each)], [rows("w", 2, [[0, 1], [2, 3]], 4, **each)])
    assert moves_nothing(stacked, 0)
    found = Generators([])
    found.add(stacked)
    assert found.without_implied() == []


def test_rows_of_one_matrix_are_the_sum_over_its_columns():
    """The keys of a fused layer, scaled as a whole, against a norm whose gains have scales of their own."""
    columns = rows("in", 1, np.arange(2, 4)[:, None], 6, matrices=3, by_matrix=True)
    gains = scales([columns], [rows("gain", 0, np.arange(2)[:, None], 2, dimensions=1)])
    keys = rows("in", 0, np.arange(4, 8)[None], 12, matrices=3)
    norm = rows("gain", 0, np.arange(2)[None], 2, dimensions=1)
    assert sums_imply([gains], scales([keys], [norm]))
    values = rows("in", 0, np.arange(8, 12)[None], 12, matrices=3)
    assert not sums_imply([gains], scales([values], [norm]))
