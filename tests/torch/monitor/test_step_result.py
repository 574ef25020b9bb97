"""Results of steps whose numbers are still on their way from a GPU: the step does not wait for them."""

import copy
import math
import threading

import pytest
import torch

from tests.torch.monitor.test_monitor import text_model
from undertow.torch import NoiseMonitor
from undertow.torch.monitor import monitor as module
from undertow.torch.monitor.tensors import HostCopy

pytestmark = pytest.mark.torch


class CopyUnderWay(HostCopy):
    """A copy that arrives when the test says so."""

    arrived = threading.Event()

    def __init__(self, x):
        super().__init__(x)
        self.waits = True

    def numpy(self):
        assert self.arrived.wait(60)
        return super().numpy()


@pytest.fixture
def under_way(monkeypatch):
    """Copies of numbers are under way until the event is set."""
    monkeypatch.setattr(module, "HostCopy", CopyUnderWay)
    monkeypatch.setattr(CopyUnderWay, "arrived", threading.Event())
    return lambda: CopyUnderWay.arrived.set()


def train(monitor, optimizer, steps, bad=()):
    _, _, ids, loss = text_model()
    for step in range(steps):
        optimizer.zero_grad()
        (loss(monitor.model, ids) * (math.nan if step in bad else 1.0)).backward()
        optimizer.step()


def start(optimiser, **options):
    model, symmetries, _, _ = text_model()
    own = copy.deepcopy(model)
    return NoiseMonitor(own, symmetries, **options), optimiser(own.parameters(), lr=0.01)


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_later_results_are_the_same(optimiser, under_way, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "HostCopy", HostCopy)
        expected, optimizer = start(optimiser, every=2)
        train(expected, optimizer, 6)
    monitor, optimizer = start(optimiser, every=2)
    under_way()
    train(monitor, optimizer, 6)
    for row, other in zip(monitor.rows, expected.rows, strict=True):
        for name, value in row.items():  # algorithms are chosen by their speed, and differ in rounding
            same = pytest.approx(value, rel=1e-3, abs=1e-9) if isinstance(value, float) else value
            assert other[name] == same, name
    assert monitor.noise_scale.total.value == pytest.approx(expected.noise_scale.total.value, rel=1e-4)
    assert [record.step for record in monitor.noise_scale.history] == [0, 2, 4]


def test_a_step_waits_only_for_the_first_measurement(under_way):
    monitor, optimizer = start(torch.optim.AdamW, every=1)
    threading.Timer(0.05, under_way).start()
    train(monitor, optimizer, 1)
    assert len(monitor._rows) == 1
    CopyUnderWay.arrived.clear()
    train(monitor, optimizer, 2)
    assert len(monitor._rows) == 1
    under_way()
    assert sorted({row["step"] for row in monitor.rows}) == [0, 1, 2]


def test_processes_that_sum_their_samples_wait(under_way, monkeypatch):
    """A parameter that turns out not to be covered is left out by all of them at the same step."""
    monitor, optimizer = start(torch.optim.AdamW, every=1)
    monkeypatch.setattr(monitor, "_distributed", True)
    monkeypatch.setattr(module.ranks, "sum_over_ranks", lambda sums, problem, *_: (sums, problem))
    under_way()
    train(monitor, optimizer, 3)
    assert len(monitor._rows) == 3


def test_a_problem_is_reported_late_and_stops_nothing(under_way):
    monitor, optimizer = start(torch.optim.SGD, every=2)
    under_way()
    with pytest.warns(UserWarning, match="step 2: the gradient is not finite"):
        train(monitor, optimizer, 3, bad=(2,)) or monitor.close()
    assert list(monitor.skipped) == [(2, "the gradient is not finite")]


def test_a_problem_of_the_first_measurement_is_an_error(under_way):
    monitor, optimizer = start(torch.optim.SGD)
    under_way()
    with pytest.raises(RuntimeError, match="at step 0: the gradient is not finite"):
        train(monitor, optimizer, 1, bad=(0,))
