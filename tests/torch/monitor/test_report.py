"""The page about a run."""

import re

import pytest
import torch
from torch import nn

from tests.torch.oracle import relu, relu_census, square
from undertow.torch import NoiseMonitor

pytestmark = pytest.mark.torch


def measured(model, symmetries, x, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            square(model, x).backward()
            optimizer.step()
    return monitor


def test_the_page_has_its_sections_figures_and_tables(tmp_path):
    monitor = measured(relu(), relu_census(), torch.randn(8, 5, dtype=torch.float64))
    path = monitor.report(tmp_path / "new" / "noise.html")
    page = path.read_text()
    for words in ("What was measured", "What it means", "What one might do", "What not to conclude", "Symmetries"):
        assert words in page
    assert page.count("<svg") == 2
    assert "http://" not in re.sub(r"http://www.w3.org/\S+", "", page)
    assert [p.name for p in path.parent.iterdir()] == ["noise.html"]
    assert f"{monitor.rows[-1]['charge']:.4g}" in page


def test_text_is_escaped(tmp_path):
    name = "<script>alert(1)</script>"
    model = nn.Sequential()
    model.add_module(name, nn.Linear(3, 3))
    model.add_module("&amp", nn.Linear(3, 3))
    page = measured(model, None, torch.randn(8, 3)).report(tmp_path / "noise.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_page_without_measurements_is_an_error(tmp_path):
    with NoiseMonitor(relu(), relu_census()) as monitor, pytest.raises(ValueError, match="nothing was measured yet"):
        monitor.report(tmp_path / "noise.html")
