"""Symmetries from the null space over all indices, where the search by layers has found none."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.zoo import square
from undertow.torch import census
from undertow.torch._copies import OnePrecision, model_copy
from undertow.torch.census.remaining import _integer, remaining_symmetries, without_sums
from undertow.torch.census.unexplained import IndexNullSpace

pytestmark = pytest.mark.torch


def space_of(model, x):
    with OnePrecision():
        return IndexNullSpace(model_copy(model, torch.float64), x.double(), square, eps=0.1, seed=0)


@pytest.fixture(scope="module")
def chain():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 2))
    return space_of(model, torch.randn(9, 3))


def test_all_symmetries_of_a_chain_are_found_without_any_level(chain):
    found = remaining_symmetries(chain, [])
    sides = {tuple(sorted(map(str, symmetry.axes))): symmetry.size for symmetry in found}
    assert sides == {
        ("0.bias", "0.weight[i, :]", "2.weight[:, i]"): 4,
        ("2.weight[i, :]", "4.weight[:, i]"): 5,
    }
    assert chain.unexplained(found) == ()


def test_known_symmetries_are_not_found_again(chain):
    first, second = remaining_symmetries(chain, [])
    (left,) = remaining_symmetries(chain, [first])
    assert set(left.parameters) == set(second.parameters)
    assert remaining_symmetries(chain, [first, second]) == []


class Widened(nn.Module):
    """Four outputs of a linear layer are the pixels of one channel of a transposed convolution, as in a decoder."""

    def __init__(self):
        super().__init__()
        self.widen, self.convolution = nn.Linear(3, 12), nn.ConvTranspose2d(3, 2, 3)

    def forward(self, x):
        return self.convolution(self.widen(x).relu().unflatten(1, (3, 2, 2)))


def test_channels_of_an_unflattened_vector():
    torch.manual_seed(0)
    (symmetry,) = census(Widened(), torch.randn(8, 3), square)
    assert symmetry.size == 3
    sizes = {axis.parameter: axis.index.shape for axis in symmetry.axes}
    assert sizes == {"widen.weight": (3, 4), "widen.bias": (3, 4), "convolution.weight": (3, 1)}


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return x * self.one**3 * self.two[[1, 2, 0]] ** 2


def test_exponents_are_small_integers():
    (symmetry,) = remaining_symmetries(space_of(Product(), torch.randn(5, 3)), [])
    powers = {axis.parameter: (axis.power, axis.index[:, 0].tolist()) for axis in symmetry.axes}
    assert powers == {"one": (2, [0, 1, 2]), "two": (3, [1, 2, 0])}
    assert _integer(np.eye(3), np.array([0.5, -0.25, 0.0])).tolist() == [2, -1, 0]
    assert _integer(np.eye(2), np.array([1.0, np.pi])) is None


def test_whole_scales_that_are_sums_are_left_out(chain):
    first, second = remaining_symmetries(chain, [])
    total = lambda side: tuple(replace(a, index=a.index.reshape(1, -1), role="whole", fold="whole") for a in side)
    whole = replace(first, plus=total(first.plus), minus=total(first.minus))
    assert without_sums(chain, [whole, first, second]) == [first, second]
    assert without_sums(chain, [whole, second]) == [second, whole]
