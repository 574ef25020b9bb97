"""Sizes of a narrow network are formulas in named sizes."""

import pytest

from undertow.torch.census.sizes import Atom, SizeMap

pytestmark = pytest.mark.torch

KEY_HEADS, HEADS, WIDTH, HIDDEN = Atom(3, 8, 1), Atom(12, 32, 1), Atom(10, 128, 1), Atom(37, 11008, 0)
SIZES = SizeMap((KEY_HEADS, HEADS, WIDTH, HIDDEN))
FORMULAS = {
    "a size": (37, 11008),
    "half a head": (5, 64),
    "all heads": (120, 4096),
    "all key heads": (30, 1024),
    "the part that is not rotated": (7, 120),
    "gate and up": (74, 22016),
    "heads per key head": (4, 4),
    "one": (1, 1),
    "a pair": (2, 2),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_simplest_formula(name):
    narrow, wide = FORMULAS[name]
    assert SIZES.candidates(narrow)[0].wide == wide


def test_nearer_names_come_first():
    near, far = Atom(6, 100, 0), Atom(6, 200, 2)
    assert [c.wide for c in SizeMap((far, near)).candidates(6)][:2] == [100, 200]


def test_equal_sizes_with_two_meanings_have_equal_cost():
    one, two = SizeMap((Atom(6, 100, 1), Atom(6, 200, 1))).candidates(6)[:2]
    assert one.cost == two.cost
    assert {one.wide, two.wide} == {100, 200}


def test_a_size_without_a_formula():
    assert SizeMap((Atom(7, 70, 0),)).candidates(11) == ()
