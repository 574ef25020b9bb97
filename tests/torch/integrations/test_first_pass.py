"""Monitors that start at the first forward pass."""

import types

import pytest
import torch
from torch import nn

from tests.torch.flows import hooks_on
from tests.torch.oracle import relu, relu_census, square
from undertow.torch.integrations import first_pass
from undertow.torch.integrations.first_pass import FirstPass, MonitorOptions

pytestmark = pytest.mark.torch


def train(model, steps=3, first=None, loss=square):
    x = torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()


def started(model, options=None, **waiting):
    waiter = FirstPass(MonitorOptions(every=1) if options is None else options)
    waiter.wait_for([model], model, **waiting)
    return waiter


def test_the_first_step_is_measured_with_a_census_of_its_batch():
    model = relu()
    waiter = started(model)
    with torch.no_grad():
        model(torch.randn(3, 5, dtype=torch.float64))
    assert waiter.monitor is None
    train(model)
    waiter.close()
    assert [row["step"] for row in waiter.monitor.rows] == [0, 1, 2]
    assert [s.name for s in waiter.monitor.census] == [s.name for s in relu_census()]
    assert hooks_on(model) == 0


def test_the_numbers_of_a_measurement_are_logged_once():
    names = {}
    for details in (False, True):
        model = relu()
        waiter = started(model, MonitorOptions(every=2, symmetries=False, details=details))
        assert waiter.new_scalars() == {}
        train(model, steps=1)
        names[details] = set(waiter.new_scalars())
        train(model, steps=1)
        assert waiter.new_scalars() == {}
        train(model, steps=1)
        assert set(waiter.new_scalars()) == names[details]
        again = waiter.restarted()
        assert hooks_on(model) == 0
        assert (again.options, again.monitor) == (waiter.options, None)
    assert "noise/share" in names[False]
    assert names[True] - names[False] == {"noise_scale/0", "noise_scale/2"}


def test_the_first_step_of_a_closure_is_measured():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    waiter = started(model, MonitorOptions(every=2, symmetries=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        value = square(model, x)
        optimizer.zero_grad()
        value.backward()
        return value

    for _ in range(5):
        optimizer.step(closure)
    waiter.close()
    assert waiter.monitor.steps == 5
    assert [record.step for record in waiter.monitor.noise_scale.history] == [0, 2, 4]


def test_a_step_that_calls_parts_of_the_model_has_the_noise_scale_only():
    model = relu()
    waiter = FirstPass(MonitorOptions(every=1))
    waiter.wait_for([model, *model], model)
    with pytest.warns(UserWarning, match="calls Linear first"):
        train(model, 1, loss=lambda net, x: net[2](torch.relu(net[0](x))).square().mean())
    waiter.close()
    assert "does not hold all parameters" in waiter.problem
    assert waiter.monitor.noise_scale.total.noise > 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double(), "measures nothing"),
        (relu, "narrow twin"),
    ],
)
def test_what_cannot_be_measured_warns_and_trains(make, words, monkeypatch):
    monkeypatch.setattr(first_pass, "MOST_PARAMETERS", 70)
    model = make()
    waiter = started(model)
    with pytest.warns(UserWarning, match=words):
        train(model)
    waiter.close()
    assert waiter.problem


def test_the_wrapper_of_accelerate_is_put_back():
    model = relu()
    model._original_forward = model.forward
    model.forward = types.MethodType(lambda self, x: type(self).forward(self, x), model)
    wrapped = model.forward
    with first_pass._without_wrapper(model):
        assert model.forward == model._original_forward
    assert model.forward is wrapped


def test_a_report_is_written_at_the_end(tmp_path):
    model = relu()
    waiter = started(model, MonitorOptions(every=1, symmetries=False, report=tmp_path / "noise.html"))
    train(model)
    waiter.close()
    assert (tmp_path / "noise.html").is_file()
