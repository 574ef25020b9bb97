"""Inputs of layers that do not depend on the batch."""

import pytest
import torch
from torch import nn

from tests.torch.oracle import (
    assert_noise,
    claimed_census,
    monitored_step,
    sample_gradients_in_a_loop,
    square,
)
from undertow.torch import NoiseMonitor

pytestmark = pytest.mark.torch


class Table(nn.Module):
    """A network that sends a table of positions through layers, once per batch or once per sample."""

    def __init__(self, copies):
        super().__init__()
        self.copies = copies
        self.table = nn.Parameter(torch.randn(4, 5))
        self.up, self.down = nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, x):
        table = self.table.expand(len(x), 4, 5) if self.copies else self.table
        return x * self.down(torch.relu(self.up(table)))


@pytest.mark.parametrize("samples", [4, 2, 3])
@pytest.mark.parametrize("names", [("up.weight",), ("down.weight",)])
def test_tables_of_parameters_are_not_taken_for_samples(samples, names):
    """A table with four positions is not taken for four samples, nor for two samples with two positions each."""
    torch.manual_seed(0)
    x = torch.randn(samples, 4, 3, dtype=torch.float64)
    model = Table(copies=False).double()
    with pytest.raises(RuntimeError, match="made of parameters alone"):
        monitored_step(model, claimed_census(model, *names), square, x)
    model = Table(copies=True).double()
    monitor, before = monitored_step(model, claimed_census(model, *names), square, x)
    assert_noise(monitor, sample_gradients_in_a_loop(before, square, x), 1e-11)


def test_a_table_of_parameters_is_reported_at_every_step():
    """The error is raised again after it was caught, and if the layer is also used on samples."""

    class Both(Table):
        def forward(self, x):
            return self.up(x).sum(1) + self.up(self.table).sum()

    model = Both(copies=False).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda net, s: net(s).square().mean()
    with NoiseMonitor(model, claimed_census(model, "up.weight"), every=1) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            loss(model, x).backward()
            with pytest.raises(RuntimeError, match="made of parameters alone"):
                optimizer.step()
    assert not monitor.rows
