"""Axes of a narrow network have the right indices in a wide one, and what is not determined is refused."""

import numpy as np
import pytest

from undertow.torch import Axis, Symmetry
from undertow.torch.census.sizes import Atom, SizeMap
from undertow.torch.census.widening import WideningError, widen

pytestmark = pytest.mark.torch


def column(index: np.ndarray, length: int, name: str = "w") -> Axis:
    return Axis(name, 0, index.reshape(len(index), -1), length)


def layouts(heads: int, key_heads: int, width: int, rotated: int) -> dict[str, tuple[np.ndarray, int]]:
    """Return index arrays of attention, from the sizes of the network, with the length of their axes."""
    wide, narrow = heads * width, key_heads * width
    queries = np.arange(wide).reshape(key_heads, heads // key_heads, width)
    keys = np.arange(narrow).reshape(key_heads, width)
    half = lambda a: a.reshape(*a.shape[:-1], 2, -1)
    fused = np.arange(heads * 3 * width).reshape(heads, 3, width)
    return {
        "groups": (queries.transpose(0, 2, 1).reshape(narrow, -1), wide),
        "pairs of queries": (half(queries).transpose(0, 3, 2, 1).reshape(narrow // 2, -1), wide),
        "pairs of keys": (half(keys).transpose(0, 2, 1).reshape(-1, 2), narrow),
        "neighbours": (keys.reshape(-1, 2), narrow),
        "rotated part": (half(keys[:, :rotated]).transpose(0, 2, 1).reshape(-1, 2), narrow),
        "rest of each head": (keys[:, rotated:].reshape(-1, 1), narrow),
        "keys in one matrix": (wide + np.arange(narrow)[:, None], wide + 2 * narrow),
        "values in one matrix": (wide + narrow + np.arange(narrow)[:, None], wide + 2 * narrow),
        "keys interleaved by head": (fused[:, 1].reshape(-1, 1), heads * 3 * width),
        "values interleaved by head": (fused[:, 2].reshape(-1, 1), heads * 3 * width),
        "whole heads": (keys, narrow),
        "all indices": (np.arange(wide)[None], wide),
    }


NARROW, WIDE = (12, 3, 26, 16), (40, 8, 64, 24)
EQUAL_NARROW, EQUAL_WIDE = (7, 7, 26, 16), (40, 40, 64, 24)


def sizes(*axes: tuple[int, int], equal: bool = False) -> SizeMap:
    """Return the named sizes, and the lengths of axes; `equal` numbers of heads for queries and keys."""
    pairs = zip(EQUAL_NARROW, EQUAL_WIDE, strict=True) if equal else zip(NARROW, WIDE, strict=True)
    return SizeMap((*(Atom(n, w, 1) for n, w in pairs), *(Atom(*axis, 0) for axis in axes)))


# no network interleaves groups of heads in this way
CASES = [(name, equal) for name in layouts(*NARROW) for equal in (False, True) if equal or "interleaved" not in name]


@pytest.mark.parametrize(("name", "equal"), CASES)
def test_indices_of_attention(name, equal):
    """The groups have 4 query heads in the narrow network and 5 in the wide one, or 1 in both."""
    narrow, broad = (EQUAL_NARROW, EQUAL_WIDE) if equal else (NARROW, WIDE)
    (index, length), (expected, wide) = layouts(*narrow)[name], layouts(*broad)[name]
    symmetry = Symmetry("QK", (column(index, length),), (), 1, True, 0.0)
    widened = widen(symmetry, {"w": (wide, 7)}, sizes((length, wide), equal=equal))
    np.testing.assert_array_equal(widened.plus[0].index, expected)
    assert widened.plus[0].length == wide


def test_both_sides_have_the_same_generators():
    narrow, wide = layouts(*NARROW), layouts(*WIDE)
    sides = ("pairs of queries", "pairs of keys")
    axes = [column(*narrow[name], name=name) for name in sides]
    symmetry = Symmetry("QK", (axes[0],), (axes[1],), 1, True, 0.0)
    widened = widen(symmetry, {name: (wide[name][1], 7) for name in sides}, sizes((312, 2560), (78, 512)))
    for axis, name in zip(widened.axes, sides, strict=True):
        np.testing.assert_array_equal(axis.index, wide[name][0])


@pytest.mark.parametrize(("block", "expected"), [(1, 1), (26, 64), (78, 512)])
def test_blocks_widen_like_sizes(block, expected):
    index = np.arange(78)[:, None]
    symmetry = Symmetry("OV", (column(index, 78),), (), block, True, 0.0)
    assert widen(symmetry, {"w": (512, 7)}, sizes()).block == expected


def test_a_block_that_is_an_extent_needs_no_name():
    """Values are read by groups of heads: the width of a head is the inner extent of the reader's axis."""
    group, length = layouts(*NARROW)["groups"]
    symmetry = Symmetry("OV", (column(group, length),), (), 26, True, 0.0)
    named = SizeMap((Atom(length, 2560, 0), Atom(3, 8, 1), Atom(12, 40, 1)))
    assert widen(symmetry, {"w": (2560, 7)}, named).block == 64


AMBIGUOUS = {
    "two meanings": (column(np.arange(6)[:, None], 11), (29, 7), (Atom(6, 8, 1), Atom(6, 9, 1)), "8 or 9 generators"),
    "no meaning": (column(np.arange(7)[:, None], 11), (29, 7), (), "no counterpart"),
    "not strided": (column(np.array([[0], [1], [5], [7]]), 11), (29, 7), (), "not strided"),
    "another dimension": (column(np.arange(11)[:, None], 11), (29, 7, 3), (), "another number of dimensions"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_is_not_determined_is_refused(name):
    axis, shape, atoms, sentence = AMBIGUOUS[name]
    with pytest.raises(WideningError, match=sentence):
        widen(Symmetry("rescaling", (axis,), (), 1, True, 0.0), {"w": shape}, SizeMap(atoms))


def test_axes_of_different_lengths_are_refused():
    axes = [Axis(name, 0, np.arange(6)[:, None], 6) for name in "ab"]
    with pytest.raises(WideningError, match="different lengths"):
        widen(Symmetry("rescaling", (axes[0],), (axes[1],), 1, True, 0.0), {"a": (8, 3), "b": (9, 3)}, SizeMap(()))


def test_a_block_with_two_meanings_is_refused():
    symmetry = Symmetry("OV", (column(np.arange(30)[:, None], 30),), (), 10, True, 0.0)
    with pytest.raises(WideningError, match="may be 8 or 16"):
        widen(symmetry, {"w": (64, 7)}, SizeMap((Atom(10, 8, 1), Atom(10, 16, 1))))
