"""Figures of measurements."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.oracle import claimed_census, square
from undertow.figures import words
from undertow.torch import NoiseMonitor
from undertow.torch.monitor import plots

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def monitor():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    names = [name for name, p in model.named_parameters() if p.ndim > 1]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with NoiseMonitor(model, claimed_census(model, *names), every=1) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            square(model, torch.randn(8, 4) + 1).backward()
            optimizer.step()
    return monitor


def test_eight_symmetries_have_a_line_and_the_others_a_band(monitor):
    charge = monitor.plot().axes[0]
    assert len(monitor.census) == 12
    assert len(charge.lines) == 8
    assert len({line.get_color() for line in charge.lines}) == 8
    assert len({line.get_label() for line in charge.lines}) == 8
    assert [band.get_label() for band in charge.collections] == ["4 others"]
    noisiest = max(range(12), key=lambda k: sum(r.noise_plus.sum() for r in [monitor.last[k]]))
    assert charge.lines[0].get_label().startswith(monitor.last[noisiest].symmetry.parameters[0].rpartition(".")[0])


def test_each_layer_has_a_small_panel(monitor, monkeypatch):
    figure = monitor.plot_layers()
    assert [axes.get_title(loc="left") for axes in figure.axes[:6]] == ["0", "1", "2", "3", "4", "5"]
    last = [record.value["3"] for record in monitor.noise_scale.history]
    np.testing.assert_allclose(figure.axes[3].lines[1].get_ydata(), last)
    monkeypatch.setattr(plots, "MOST_PANELS", 4)
    assert "2 more layers are not shown" in monitor.plot_layers().get_suptitle()


def test_every_curve_is_described_in_words(monitor):
    figure = monitor.plot()
    sentences = words.describe(figure)
    assert "no finite values" not in sentences
    for axes in figure.axes[:3]:
        for line in axes.lines:
            assert f"{line.get_label()}, a line: {line.get_ydata()[0]:.4g} " in sentences
    assert len({line.get_label() for line in figure.axes[1].lines}) == 16  # both sides of eight symmetries
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == ["plus", "minus"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == figure.axes[0].get_legend_handles_labels()[1]


def test_labels_of_one_row_of_layers_are_inside_the_figure(monitor, monkeypatch):
    monkeypatch.setattr(plots, "MOST_PANELS", 3)
    figure = monitor.plot_layers()
    figure.draw_without_rendering()
    for text in (figure._supxlabel, figure._supylabel, figure._suptitle):
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_without_a_census_the_noise_scale_is_drawn(monitor):
    figure = plots.plot_symmetries(type(monitor.census)((), (), (), (), (), ()), [], monitor.noise_scale)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["gradient noise scale (samples)"]
