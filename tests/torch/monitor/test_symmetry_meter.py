"""The meter: what is recorded for which optimiser, and a census without symmetries."""

import pytest
import torch
from torch import nn

from tests.torch.oracle import relu_census
from undertow.torch import Census, NoiseMonitor, census
from undertow.torch.monitor.symmetry_meter import SymmetryMeter

pytestmark = pytest.mark.torch


def error(model, x):
    return model(x).square().mean()


def test_a_census_without_symmetries_needs_nothing():
    assert SymmetryMeter(Census((), (), (), (), (), ())).requests == []
    assert SymmetryMeter(relu_census()).requests


def test_inner_products_of_a_gl_are_recorded_for_sgd_alone():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    symmetries = census(model, torch.randn(8, 4), error)
    assert [symmetry.block for symmetry in symmetries] == [3]
    has_blocks = lambda meter: any(request.index is not None for request in meter.requests)
    for kind, blocks in ((torch.optim.SGD, True), (torch.optim.AdamW, False)):
        optimizer = kind(model.parameters(), lr=1e-3)
        with NoiseMonitor(model, symmetries, every=1) as monitor:
            assert has_blocks(monitor._meter)  # the optimiser is not known yet
            for _ in range(2):
                optimizer.zero_grad()
                error(model, torch.randn(8, 4)).backward()
                optimizer.step()
            assert has_blocks(monitor._meter) is blocks
            assert len(monitor.rows) == 2
