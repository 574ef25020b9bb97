"""Moves in place equal those of `axes.move`, one symmetry after the other."""

import numpy as np
import pytest
import torch

from undertow.torch.census.axes import Axis, Symmetry, move
from undertow.torch.census.inplace import move_in_place, multiply_along

pytestmark = pytest.mark.torch


def columns(*indices):
    return np.array(indices)[:, None]


def symmetry(plus, minus, block=1):
    return Symmetry("", tuple(plus), tuple(minus), block, True, 0.0)


def params():
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (6, 4), "b": (3, 6), "gain": (6,), "kernel": (6, 4, 3, 3), "experts": (2, 6, 4), "scalar": ()}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


EVERY = np.arange(6)[:, None]
MOVES = {
    "scales": [symmetry([Axis("b", 1, EVERY, 6)], [Axis("a", 0, EVERY, 6)])],
    "two symmetries of one parameter": [
        symmetry([Axis("b", 1, EVERY, 6)], [Axis("a", 0, EVERY, 6)]),
        symmetry([Axis("a", 1, columns(0, 2), 4)], [Axis("b", 0, columns(2, 0), 3)]),
    ],
    "indices that move together, and a power": [
        symmetry([Axis("b", 1, np.array([[0, 3], [1, 4]]), 6, power=2)], [Axis("gain", 0, np.array([[0], [5]]), 6, 1)])
    ],
    "shifts": [
        symmetry([Axis("gain", 0, EVERY, 6, 1, shift=1.0)], [Axis("a", 0, EVERY, 6)]),
        symmetry([Axis("gain", 0, EVERY, 6, 1)], [Axis("b", 1, EVERY, 6)]),
    ],
    "blocks between scales": [
        symmetry([Axis("b", 1, EVERY, 6)], [Axis("a", 0, EVERY, 6)]),
        symmetry([Axis("b", 1, columns(0, 1, 4, 5), 6)], [Axis("a", 1, columns(0, 1, 2, 3), 4)], block=2),
        symmetry([Axis("b", 1, EVERY, 6)], [Axis("gain", 0, EVERY, 6, 1)]),
    ],
    "blocks of a convolution": [
        symmetry([Axis("kernel", 1, columns(0, 1, 2, 3), 4, 4)], [Axis("a", 1, columns(0, 1, 2, 3), 4)], block=4)
    ],
    "by matrix": [
        symmetry(
            [Axis("experts", 2, columns(1, 6), 8, 3, matrices=2, by_matrix=True)],
            [Axis("experts", 1, columns(3, 11), 12, 3, matrices=2, by_matrix=True)],
        )
    ],
    "a scalar": [symmetry([Axis("scalar", 0, columns(0), 1, 0)], [Axis("a", 0, np.arange(6)[None], 6)])],
}


def transforms(symmetries):
    generator = torch.Generator().manual_seed(1)
    parts = []
    for one in symmetries:
        if one.block == 1:
            factors = torch.rand(one.size, generator=generator, dtype=torch.float64) + 0.5
            parts.append((one, factors, 1 / factors))
        else:
            shape = (one.size // one.block, one.block, one.block)
            matrices = torch.eye(one.block) + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
            parts.append((one, matrices, torch.linalg.inv(matrices)))
    return parts


@pytest.mark.parametrize("name", MOVES)
def test_moves_equal_those_one_by_one_and_are_undone_by_the_inverse(name):
    parts, original = transforms(MOVES[name]), params()
    expected = params()
    for one, transform, _ in parts:
        expected |= move(expected, one, transform)
    moved = params()
    move_in_place(moved, parts)
    for key, value in expected.items():
        torch.testing.assert_close(moved[key], value, rtol=1e-12, atol=1e-12)
    assert any(not torch.equal(moved[key], original[key]) for key in moved)
    move_in_place(moved, [(one, inverse, transform) for one, transform, inverse in reversed(parts)])
    for key, value in original.items():
        torch.testing.assert_close(moved[key], value, rtol=1e-12, atol=1e-12)


def test_factors_along_an_axis_are_exact_zeros():
    tensor = params()["experts"]
    multiply_along(tensor, Axis("experts", 1, EVERY, 12, 3, matrices=2, by_matrix=True), np.arange(12) % 2.0)
    assert (tensor.reshape(12, 4)[::2] == 0).all()
    assert (tensor.reshape(12, 4)[1::2] != 0).all()
    gain = params()["gain"]
    multiply_along(gain, Axis("gain", 0, EVERY, 6, 1, shift=1.0), np.zeros(6))
    assert (gain == -1).all()
