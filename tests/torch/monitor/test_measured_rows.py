"""Measurements that are computed later."""

import itertools

import pytest
import torch

from tests.torch.oracle import relu, relu_census, square
from undertow.torch import NoiseMonitor
from undertow.torch.monitor import measured_rows, step_result

pytestmark = pytest.mark.torch


def train(steps, **options):
    torch.manual_seed(0)
    model = relu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = NoiseMonitor(model, relu_census(), every=1, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        square(model, torch.randn(8, 5, dtype=torch.float64)).backward()
        optimizer.step()
    return monitor


def test_measurements_wait_and_are_the_same_later(monkeypatch):
    """Numbers come from copies, so that later steps change nothing; noise scales keep their order."""
    later = train(measured_rows.MOST_WAITING + 3)
    waiting = later._rows._waiting
    assert len(waiting) == 3  # eight were computed, and three wait
    monkeypatch.setattr(step_result, "DEFERRED_BYTES", -1)
    monkeypatch.setattr(measured_rows, "MOST_WAITING", 1)
    now = train(11)
    assert len(now._rows._waiting) == 0
    assert now.rows == later.rows
    assert [row["step"] for row in later.rows] == list(range(11))
    scales = [[record.value for record in one.noise_scale.history] for one in (now, later)]
    assert scales[0] == scales[1]


def test_a_writer_gets_every_measurement_at_once():
    logged: list[dict] = []
    monitor = train(5, writer=logged.append)
    assert len(monitor._rows._waiting) == 0
    assert len(logged) == 5


def test_a_closed_monitor_has_all_rows():
    monitor = train(3)
    monitor.close()
    assert len(monitor._rows._waiting) == 0
    for one, two in itertools.pairwise(monitor.rows):
        assert one["charge"] + one["change"] == pytest.approx(two["charge"], rel=1e-9)
