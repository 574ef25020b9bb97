"""The steps of a census: a symmetry is found also where the null space at random weights has other vectors."""

import pytest
import torch
from torch import nn

from tests.torch.generator import square
from undertow.torch import census

pytestmark = pytest.mark.torch


class Gated(nn.Module):
    """A gate that is linear at moderate weights: there any two of its three layers can be scaled against each other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(5, 6, bias=False), nn.Linear(5, 6, bias=False), nn.Linear(6, 3)

    def forward(self, x):
        return self.down(nn.functional.relu6(self.gate(x)) * self.up(x))


def test_a_symmetry_is_found_beside_those_that_fail_where_a_layer_saturates():
    """Which two of the three vectors come first depends on rounding, and so on the seed."""
    torch.manual_seed(0)
    model, batch = Gated(), torch.randn(8, 5)
    for seed in range(12):
        (symmetry,) = census(model, batch, square, seed=seed)
        assert (symmetry.size, symmetry.block) == (6, 1)
        assert set(symmetry.parameters) == {"up.weight", "down.weight"}
