"""Layers that are run again, under the autocast in which they ran."""

import copy

import pytest
import torch
from torch import nn

from tests.torch.oracle import (
    Attention,
    assert_noise,
    claimed_census,
    monitored_step,
    sample_gradients_in_a_loop,
    square,
)
from undertow.torch import NoiseMonitor

pytestmark = pytest.mark.torch


def test_a_layer_is_run_again_under_its_own_autocast():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 12), Attention()), torch.randn(24, 6, 12)  # its input has half precision
    before = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    symmetries = claimed_census(model, "1.attention.in_proj_weight", "1.attention.out_proj.weight")
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
        output.float().square().flatten(1).sum(1).mean().backward()
        optimizer.step()
    assert_noise(monitor, sample_gradients_in_a_loop(before, square, x.double()), 5e-2)


class TwoOutputs(nn.Module):
    """A layer with two outputs that both depend on its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        product = x @ self.weight.mT
        return product.sin(), product.cos()


class UsesTwoOutputs(nn.Module):
    """A network that uses one or both outputs of the layer."""

    def __init__(self, both):
        super().__init__()
        self.layer, self.both = TwoOutputs(), both

    def forward(self, x):
        one, two = self.layer(x)
        return one * two if self.both else one


@pytest.mark.parametrize("both", [True, False])
def test_layers_with_two_outputs_count_once(both):
    torch.manual_seed(0)
    model, x = UsesTwoOutputs(both).double(), torch.randn(6, 5, dtype=torch.float64)
    monitor, before = monitored_step(model, claimed_census(model, "layer.weight"), square, x)
    assert_noise(monitor, sample_gradients_in_a_loop(before, square, x), 1e-11)
