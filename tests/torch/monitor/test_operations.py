"""The number of tensor operations of a measurement: a GPU waits for its host, which needs microseconds for each."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from undertow.torch import Axis, Census, NoiseMonitor, Symmetry

pytestmark = pytest.mark.torch

WIDTH, HIDDEN = 6, 10


class Norm(nn.Module):
    """A norm as transformers has them."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


class Residual(nn.Module):
    """A norm and two dense layers, with symmetries between the norm, the first and the second layer."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = Norm(), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def residual_census(depth):
    symmetries = []
    for k in range(depth):
        axis = lambda name, axis, size, k=k: Axis(f"{k}.{name}.weight", axis, np.arange(size)[:, None], size)
        gains = (axis("norm", 0, WIDTH),), (axis("up", 1, WIDTH),)
        units = (axis("up", 0, HIDDEN),), (axis("down", 1, HIDDEN),)
        symmetries += [Symmetry(f"gains {k}", *gains, 1, True, 0.0), Symmetry(f"units {k}", *units, 1, True, 0.0)]
    return Census(tuple(symmetries), (), (), (), (), ())


class Operations(TorchDispatchMode):
    """Counts the operations that reach PyTorch's backends."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.counts[str(operation)] += 1
        return operation(*args, **(kwargs or {}))


def operations_of_a_measurement(depth, optimiser):
    """Return how many operations a measured step has beyond a plain one."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Residual() for _ in range(depth)))
    optimizer = optimiser(model.parameters())
    batch = torch.randn(4, 3, WIDTH)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    def counted():
        with Operations() as operations:
            step()
        return operations.counts.total()

    for _ in range(2):
        step()
    plain = counted()
    with NoiseMonitor(model, residual_census(depth), every=1) as monitor:
        for _ in range(2):  # chooses algorithms and statistics
            step()
        measured = counted()
    assert not monitor.skipped
    assert len(monitor.rows) == 3 * 2 * depth
    return measured - plain


MOST_PER_LAYER, MOST_IN_TOTAL = 15, 800
"""Bounds for this model, above the 11 or 12 per layer and the 640 of nine layers that were counted."""


@pytest.mark.parametrize(
    "optimiser",
    [lambda p: torch.optim.SGD(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)],
    ids=["SGD", "AdamW"],
)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_further_layer_of_the_same_shapes_adds_few_operations(optimiser):
    """Three inputs are detached, and a norm is one call (5 operations on a CPU), a product and a sum."""
    few, many = (operations_of_a_measurement(depth, optimiser) for depth in (3, 9))
    assert many - few <= 6 * MOST_PER_LAYER
    assert many <= MOST_IN_TOTAL
