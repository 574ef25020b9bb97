"""Buffers, modes and random generators are restored."""

import pytest
import torch
from torch import nn

from tests.torch.tasks import regression
from tests.torch.zoo import build
from undertow.torch import census, equilibrate

pytestmark = pytest.mark.torch


def test_buffers_and_modes_are_restored():
    model, _, _ = build("conv")
    batches = [(torch.randn(6, 3, 9, 9), torch.randn(6, 3)) for _ in range(4)]
    model(batches[0][0])
    before = {name: b.clone() for name, b in model.named_buffers()}
    done = equilibrate(model, batches, regression, census(model, batches[0], regression), step_size=0.1)
    assert all(torch.equal(before[name], b) for name, b in model.named_buffers())
    assert model.training
    assert done.noise[1].value < done.noise[0].value


class Cached(nn.Module):
    """A model that creates a buffer in its first pass, counts passes in another, and has sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4, sparse=True)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, index):
        if not hasattr(self, "cache"):
            self.register_buffer("cache", torch.ones(()))
        self.passes += 1
        return self.net(self.table(index)) * self.cache


def test_new_buffers_are_removed_from_a_model_with_sparse_gradients():
    torch.manual_seed(0)
    net, batches = Cached(), [torch.randint(0, 7, (9,)) for _ in range(8)]
    loss = lambda model, index: model(index).square().mean()
    done = equilibrate(net, batches, loss, census(net, batches[0], loss), step_size=0.1)
    assert done.imbalance < 1e-3
    assert dict(net.named_buffers()).keys() == {"passes"}
    assert net.passes == 0
