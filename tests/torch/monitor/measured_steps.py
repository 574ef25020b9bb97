"""Training steps under many optimisers, measured by a monitor, and the exactness of the change of charges."""

import itertools

import pytest
import torch
from torch import nn

from tests.torch.oracle import square
from undertow.torch import NoiseMonitor

PARTS = ("first_order", "second_order", "decay", "metric")


def halves(model, **second):
    """Return two parameter groups with different step sizes and decays, one for each side of a symmetry."""
    parameters = list(model.parameters())
    k = len(parameters) // 2
    return [{"params": parameters[:k], "lr": 0.01}, {"params": parameters[k:], "lr": 0.03, **second}]


OPTIMISERS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.05),
    "heavy ball": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05),
    "Nesterov": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05, nesterov=True),
    "dampening": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, dampening=0.3, maximize=True),
    "SGD groups": lambda net: torch.optim.SGD(halves(net, weight_decay=0.2), momentum=0.5),
    "fused SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05, fused=True),
    "Adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1),
    "fused": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1, fused=True),
    "foreach": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1, foreach=True),
    "tensor": lambda net: torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01, dtype=torch.float64)),
    "maximize": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1, maximize=True),
    "eps": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1, eps=0.1, betas=(0.8, 0.9)),
    "AdamW groups": lambda net: torch.optim.AdamW(halves(net, weight_decay=0.2, betas=(0.5, 0.99)), weight_decay=0.0),
}


def train(model, symmetries, optimizer, steps=4, dtype=torch.float64, clip=None, loss=square):
    """Return the monitor of some steps on fresh data."""
    torch.manual_seed(3)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, torch.randn(8, 5, dtype=dtype)).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return monitor


def assert_exact_change(monitor, tolerance):
    """Assert that the parts of the change add up to the difference of the charges of consecutive steps."""
    for place in range(len(monitor.census)):
        rows = monitor.rows[place :: len(monitor.census)]
        for one, two in itertools.pairwise(rows):
            size = sum(abs(one[name]) for name in PARTS)
            assert size > 0
            assert abs(two["charge"] - one["charge"] - one["change"]) < tolerance * size
            assert one["change"] == pytest.approx(sum(one[name] for name in PARTS))
