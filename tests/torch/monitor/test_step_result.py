"""Results of steps that a thread completes, as for a GPU: the step does not wait for them, and has the same numbers."""

import copy
import math
import threading

import pytest
import torch

from tests.torch.monitor.test_monitor import text_model
from undertow.torch import NoiseMonitor
from undertow.torch.monitor import background, step_result
from undertow.torch.monitor import monitor as module
from undertow.torch.monitor.tensors import on_host

pytestmark = pytest.mark.torch


@pytest.fixture
def arrived(monkeypatch, as_on_a_gpu):
    """An event: threads work for the CPU too, and copies to the host are under way until it is set."""
    event = threading.Event()
    monkeypatch.setattr(background, "DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(step_result, "on_host", lambda x: on_host(x) if event.wait(60) else None)
    return event


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


def measured_without_threads(optimiser, every, monkeypatch):
    """Train six steps without threads, and return the monitor."""
    with monkeypatch.context() as patch:
        patch.setattr(background, "DEVICES", ())
        monitor, optimizer = start(optimiser, every=every)
        train(monitor, optimizer, 6)
    return monitor


def assert_same_rows(monitor, expected):
    for row, other in zip(monitor.rows, expected.rows, strict=True):
        for name, value in row.items():  # algorithms are chosen by their speed, and differ in rounding
            same = pytest.approx(value, rel=1e-3, abs=1e-9) if isinstance(value, float) else value
            assert other[name] == same, name


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_later_results_are_the_same(optimiser, arrived, monkeypatch):
    arrived.set()
    expected = measured_without_threads(optimiser, 2, monkeypatch)
    monitor, optimizer = start(optimiser, every=2)
    train(monitor, optimizer, 6)
    assert_same_rows(monitor, expected)
    assert monitor.noise_scale.total.value == pytest.approx(expected.noise_scale.total.value, rel=1e-4)
    assert [record.step for record in monitor.noise_scale.history] == [0, 2, 4]


def test_a_step_waits_only_for_the_first_measurement(arrived):
    monitor, optimizer = start(torch.optim.AdamW, every=1)
    threading.Timer(0.05, arrived.set).start()
    train(monitor, optimizer, 1)
    assert len(monitor._rows) == 1
    arrived.clear()
    train(monitor, optimizer, 2)
    assert len(monitor._rows) == 1
    arrived.set()
    assert sorted({row["step"] for row in monitor.rows}) == [0, 1, 2]


def test_processes_that_sum_their_samples_wait(arrived, monkeypatch):
    """A parameter that turns out not to be covered is left out by all of them at the same step."""
    monitor, optimizer = start(torch.optim.AdamW, every=1)
    monkeypatch.setattr(monitor, "_distributed", True)
    monkeypatch.setattr(module.ranks, "sum_over_ranks", lambda sums, problem, *_: (sums, problem))
    arrived.set()
    train(monitor, optimizer, 3)
    assert len(monitor._rows) == 3


def test_a_problem_is_reported_late_and_stops_nothing(arrived):
    monitor, optimizer = start(torch.optim.SGD, every=2)
    arrived.set()
    with pytest.warns(UserWarning, match="step 2: the gradient is not finite"):
        train(monitor, optimizer, 3, bad=(2,)) or monitor.close()
    assert list(monitor.skipped) == [(2, "the gradient is not finite")]


def test_a_problem_of_the_first_measurement_is_an_error(arrived):
    monitor, optimizer = start(torch.optim.SGD)
    arrived.set()
    with pytest.raises(RuntimeError, match="at step 0: the gradient is not finite"):
        train(monitor, optimizer, 1, bad=(0,))


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_later_steps_change_nothing_of_a_measurement_under_way(optimiser, arrived, monkeypatch):
    """The thread computes from copies: parameters, gradients and the state of the optimiser are others by then."""
    arrived.set()
    expected = measured_without_threads(optimiser, 3, monkeypatch)
    monitor, optimizer = start(optimiser, every=3)
    train(monitor, optimizer, 1)
    read, arrived_late = module.read_result, threading.Event()
    monkeypatch.setattr(module, "read_result", lambda *args: read(*args) if arrived_late.wait(60) else None)
    train(monitor, optimizer, 5)
    arrived_late.set()
    assert_same_rows(monitor, expected)


def test_no_thread_works_when_the_profiler_of_pytorch_ends(arrived):
    """PyTorch crashes there; a measurement from before the profiler is completed by the end of the next step."""
    arrived.set()
    monitor, optimizer = start(torch.optim.AdamW, every=2)
    train(monitor, optimizer, 2)
    arrived.clear()
    train(monitor, optimizer, 1)
    assert len(monitor._unread) == 1
    threading.Timer(0.1, arrived.set).start()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        train(monitor, optimizer, 1)
        assert len(monitor._unread) == 0
        train(monitor, optimizer, 1)
        assert len(monitor._unread) == 0
    assert sorted({row["step"] for row in monitor.rows}) == [0, 2, 4]
