"""Output of measurements: CSV, TensorBoard and figures."""

import csv
import sys

import numpy as np
import pytest
import torch

from tests.torch.oracle import (
    relu,
    relu_census,
    square,
)
from undertow.torch import NoiseMonitor
from undertow.torch.monitor.monitor import COLUMNS

pytestmark = pytest.mark.torch


class Log:
    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))


def test_csv_figure_and_log(tmp_path, monkeypatch, as_a_user):
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    symmetries = relu_census()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = Log()
    with NoiseMonitor(model, symmetries, every=1, writer=log) as monitor:
        with pytest.raises(ValueError, match="nothing was measured yet"):
            monitor.plot()
        for _ in range(2):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    assert tuple(monitor.rows[0]) == COLUMNS
    monitor.to_csv(tmp_path / "noise.csv")
    with open(tmp_path / "noise.csv") as file:
        read = list(csv.DictReader(file))
    assert [float(row["charge"]) for row in read] == [row["charge"] for row in monitor.rows]
    name = monitor.rows[0]["symmetry"]
    assert (f"{name}/charge", monitor.rows[1]["charge"], 1) in log.scalars
    figure = monitor.plot()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "charge",
        "noise power",
        "log distance to equilibrium",
        "gradient noise scale (samples)",
    ]
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), [row["charge"] for row in monitor.rows])
    with pytest.raises(TypeError, match="has no `add_scalar` and no `log`"):
        NoiseMonitor(model, symmetries, writer=3)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        NoiseMonitor(model, symmetries, writer=str(tmp_path))


def test_tensorboard_can_read_the_log(tmp_path, as_a_user):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, relu_census(), every=1, writer=tmp_path) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    read = EventAccumulator(str(tmp_path)).Reload()
    events = read.Scalars(f"{monitor.rows[0]['symmetry']}/charge")
    assert [event.step for event in events] == [0, 1, 2]
    np.testing.assert_allclose([event.value for event in events], [row["charge"] for row in monitor.rows], rtol=1e-6)
