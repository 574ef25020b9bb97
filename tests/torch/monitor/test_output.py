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
        "distance to equilibrium",
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


def test_dictionary_loggers_get_all_numbers():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logged, objects = [], type("Run", (), {"log": lambda self, values: kept.append(values)})()
    kept = []
    for writer in (logged.append, objects):
        with NoiseMonitor(model, relu_census(), every=1, writer=writer) as monitor:
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    for values in (logged[0], kept[0]):
        assert values["step"] == 0
        assert values["noise/share"] == pytest.approx(monitor.noise_scale.total.noise_share, rel=0.5)
        assert {"noise_scale/0", "noise_scale/2", f"{monitor.rows[0]['symmetry']}/charge"} <= set(values)
        assert all(isinstance(value, int | float) for value in values.values())


def test_arrays_have_the_numbers_of_the_rows():
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, relu_census(), every=2) as monitor:
        for _ in range(5):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    data = monitor.to_xarray()
    assert data.step.values.tolist() == [0, 2, 4]
    assert data.symmetry.values.tolist() == ["0: rescaling"]
    np.testing.assert_allclose(data.charge.values[:, 0], [row["charge"] for row in monitor.rows])
    last = data.noise_scale.sel(layer="2").values[-1]
    assert last == pytest.approx(monitor.noise_scale.layers["2"].value)


def test_memory_is_bounded(monkeypatch):
    """Rows are bounded by their number, whatever `keep` is; the noise scale covers the whole run."""
    monkeypatch.setattr("undertow.torch.monitor.measured_rows.MOST_ROWS", 3)
    monkeypatch.setattr("undertow.torch.monitor.noise_scale.HISTORY", 4)
    model, x = relu(), torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, relu_census(), every=1) as monitor:
        for _ in range(9):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    assert [row["step"] for row in monitor.rows] == [6, 7, 8]
    assert [record.step for record in monitor.noise_scale.history] == [0, 4, 8]
