"""Requests of the noise scale, and the power of a step."""

import pytest
import torch
from torch import nn

from tests.torch.oracle import relu, relu_census, sample_gradients_by_vmap, square
from undertow.torch import NoiseMonitor
from undertow.torch.monitor.scale_requests import scale_requests
from undertow.torch.monitor.statistics import StatisticRequest

pytestmark = pytest.mark.torch


def test_only_parameters_without_a_sum_of_squares_are_requested():
    parameters = {name: nn.Parameter(torch.zeros(2, 2)) for name in "abc"}
    blocks = StatisticRequest("b", 0, torch.zeros(1, 2, 1).long().numpy())
    added = scale_requests([StatisticRequest("a", 1), blocks], parameters)
    assert [(request.parameter, request.index) for request in added] == [("b", None), ("c", None)]


def test_power_by_parameter_is_that_of_the_samples():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    parts = sample_gradients_by_vmap(model, square, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    for name, rows in parts.items():
        scale = monitor.noise_scale.of(name, [name])
        noise = (rows - rows.mean(0)).square().sum().item() * 8 / 7
        assert scale.noise == pytest.approx(noise, rel=1e-10)
        assert scale.signal == pytest.approx(rows.sum(0).square().sum().item() - noise, rel=1e-8)


def test_parameters_that_no_layer_holds_are_named():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.shift = nn.Linear(5, 3), nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return self.layer(x) + self.shift

    model = Direct()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with NoiseMonitor(model, every=1) as monitor:
        square(model, torch.randn(8, 5)).backward()
        optimizer.step()
    assert set(monitor.noise_scale.uncovered) == {"shift"}
    assert "give it a module of its own" in monitor.noise_scale.uncovered["shift"]
    assert set(monitor.noise_scale.covered) == {"layer.weight", "layer.bias"}
    assert "not included: shift." in str(monitor.noise_scale)
