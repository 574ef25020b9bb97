"""Recorded gradients against `.grad`: clipping, cancellation, and gradients that cannot be recorded."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.torch.flows import reported
from tests.torch.oracle import claimed_census, monitored_step, relu, relu_census, square
from undertow.torch import NoiseMonitor
from undertow.torch.monitor import consistency
from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.consistency import compare_gradients
from undertow.torch.monitor.sample_gradients import gradient_probe
from undertow.torch.monitor.statistics import StatisticRequest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_gradient_that_is_not_finite_is_reported(value):
    """Neither infinities, whose products with 0 are not numbers, nor squares that overflow give another warning."""
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    bad = x.clone()
    bad[0] = value
    with pytest.raises(RuntimeError, match="the gradient is not finite"):
        monitored_step(model, relu_census(), square, bad)
    model = relu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        square(model, bad).backward()
        with reported("the gradient is not finite", measured=1):
            optimizer.step()
    assert len(monitor.rows) == 1


def test_clipped_gradients_have_clipped_noise():
    x = torch.randn(16, 5, dtype=torch.float64)
    symmetries = relu_census()
    plain, _ = monitored_step(relu(), symmetries, square, x)
    model = relu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        square(model, x).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    factor = float(0.1 / norm) ** 2
    assert factor < 0.5
    np.testing.assert_allclose(monitor.last[0].noise_plus, factor * plain.last[0].noise_plus, rtol=1e-4)


def test_parameters_frozen_after_the_census_are_reported():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    symmetries = relu_census()
    model[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match="take a census of this model"):
        NoiseMonitor(model, symmetries)
    model[0].bias.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        model[0].bias.requires_grad_(False)
        square(model, x).backward()
        with pytest.warns(UserWarning, match="does not train any more"):
            optimizer.step()
    assert [step for step, _ in monitor.skipped] == [1]
    assert len(monitor.rows) == 1


def test_gradients_that_cancel_have_noise():
    """At a minimum the gradients of the samples cancel: there is noise and no gradient."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    x = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[1].weight.fill_(1.0)
    loss = lambda net, s: (net(s) - torch.tensor([[0.0], [2.0]], dtype=torch.float64)).square().sum()
    monitor, _ = monitored_step(model, claimed_census(model, "0.weight", "1.weight"), loss, x)
    # sample gradients +2 and -2: covariance 2/1 (4 + 4)
    np.testing.assert_allclose([reading.noise_plus[0] for reading in monitor.last], 16.0)


class Functional(nn.Module):
    """A model that uses the weights of a layer without calling it."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()

    def forward(self, x):
        return self.head(F.linear(x.sin(), self.layer.weight) + self.layer(x))


def test_rounding_in_half_precision_does_not_change_the_factor_of_the_others():
    """Parameters in half precision may be off by percents; the factor is fitted to those in full precision."""
    torch.manual_seed(0)
    parameters, sums, requests = {}, BatchSums(), {}
    for name, error in (("half", 0.01), ("full", 0.0)):
        parameters[name] = nn.Parameter(torch.zeros(40))
        gradient = torch.randn(40) * (100 if name == "half" else 1)
        parameters[name].grad = gradient * (1 + error)
        request = StatisticRequest(name, 0)
        requests[name] = [request]
        sums.sums[request], sums.probes[name], sums.flipped[name] = gradient.square() / 8, gradient, None
    sums.samples, sums.counted, sums.half = 8, 8, {"half"}
    comparison = compare_gradients(sums, parameters, requests)
    assert comparison.scale == 1.0
    compared = comparison.read(comparison.numbers)
    assert (compared.problem, compared.unmatched) == (None, {})
    assert compared.square["full"] == pytest.approx(float(parameters["full"].grad.square().sum()), rel=1e-6)


def test_a_parameter_that_is_not_required_is_listed_if_it_does_not_agree():
    parameters, sums, requests = {}, BatchSums(), {}
    torch.manual_seed(0)
    for name in ("a", "b", "c"):
        parameters[name] = nn.Parameter(torch.zeros(5))
        parameters[name].grad = torch.randn(5)
        request = StatisticRequest(name, 0)
        requests[name] = [request]
        sums.sums[request], sums.flipped[name] = torch.ones(5), None
        sums.probes[name] = parameters[name].grad * (3 if name == "c" else 1)
    sums.samples = sums.counted = 8

    def compared(required):
        comparison = compare_gradients(sums, parameters, requests, required)
        return comparison.read(comparison.numbers)

    for required in (set(), {"a"}):
        assert compared(required).problem is None
        assert set(compared(required).unmatched) == {"c"}
        assert set(compared(required).second) == {"a", "b"}
    assert "is not the one that was recorded" in compared({"c", "a"}).problem


def test_gradients_that_cannot_be_recorded_are_reported(as_a_user):
    x = torch.randn(8, 5, dtype=torch.float64)
    symmetries = relu_census()
    model = Functional()
    with pytest.raises(RuntimeError, match="used outside its module"):
        monitored_step(model, claimed_census(model, "layer.weight"), square, x)
    with pytest.raises(RuntimeError, match="one sample per step"):
        monitored_step(relu(), symmetries, square, x[:1])

    def again(net, s):
        value = square(net, s)
        value.backward(retain_graph=True)
        return value

    with pytest.raises(RuntimeError, match="twice through one graph"):
        monitored_step(relu(), symmetries, again, x)
    with pytest.raises(RuntimeError, match="not called, only parts of it"):
        monitored_step(relu(), symmetries, lambda net, s: net[2](F.relu(net[0](s))).square().mean(), x)
    with pytest.raises(RuntimeError, match="recorded no backward pass"):
        monitored_step(relu(), symmetries, lambda net, s: sum(p.square().sum() for p in net.parameters()), x)
    model = relu()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, symmetries, every=1):
        square(model, x).backward()
        with pytest.raises(RuntimeError, match=r"call `zero_grad\(\)`"):
            optimizer.step()
    normed = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="put it in eval mode"):
        NoiseMonitor(normed, claimed_census(normed, "0.weight"))
    with pytest.raises(ValueError, match="use DistributedDataParallel"):
        NoiseMonitor(nn.DataParallel(relu()), symmetries)
    with pytest.raises(TypeError, match="give `census"):
        NoiseMonitor(relu(), [])
    with pytest.raises(ValueError, match="every=0"):
        NoiseMonitor(relu(), symmetries, every=0)
    with pytest.raises(ValueError, match="batch_axis=2"):
        NoiseMonitor(relu(), symmetries, batch_axis=2)


@pytest.mark.parametrize("entries", [1, 2 * 12, 2**22])
def test_projections_of_gradients_of_one_shape_are_made_together(entries, monkeypatch):
    monkeypatch.setattr(consistency, "PROBED_ENTRIES", entries)
    torch.manual_seed(0)
    shapes = {"a": (4, 3), "b": (4, 3), "c": (4, 3), "t": (4, 3), "conv": (4, 3, 2), "bias": (5,), "d": (4, 3)}
    flipped = {"a": False, "b": False, "c": False, "t": True, "conv": False, "bias": None, "d": False}
    gradients = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    projected = consistency._projected(gradients, flipped)
    assert list(projected) == list(gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(projected[name], gradient_probe(gradient, flipped[name]))
