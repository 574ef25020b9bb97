"""Assertions on the census of networks whose symmetries are known."""

import functools
from collections import Counter

import torch

from tests.torch.zoo import KNOWN, build
from undertow.torch import Census, census
from undertow.torch._copies import cast_batch, model_copy, randomise, unwrap
from undertow.torch.census.axes import Symmetry
from undertow.torch.census.proof import OrbitTrial


def row(symmetry: Symmetry) -> tuple:
    sides = (tuple(sorted(map(str, side))) for side in (symmetry.minus, symmetry.plus))
    return (symmetry.kind, symmetry.size, symmetry.block, *sides)


def assert_known_symmetries(name, symmetries):
    known = KNOWN[name]
    expected = [(kind, size, block, tuple(sorted(a)), tuple(sorted(b))) for kind, size, block, a, b in known.exact]
    assert sorted(map(row, symmetries)) == sorted(expected)
    assert Counter((r.kind, r.size) for r in symmetries.approximate) == Counter(known.scales)
    assert all(r.change <= 1e-5 for r in symmetries)
    assert symmetries.unclear == ()


@functools.cache
def census_of(name: str) -> Census:
    """Return the census of a network of the zoo. Tests that only read it share it."""
    return census(*build(name))


def orbit_trial(name):
    model, batch, loss = build(name)
    symmetries = census_of(name)
    small = model_copy(unwrap(model), torch.float32)
    randomise(small, 7)
    return symmetries, OrbitTrial(small, cast_batch(batch, torch.float32), loss)


def the(symmetries, kind):
    return next(symmetry for symmetry in symmetries if symmetry.kind == kind)
