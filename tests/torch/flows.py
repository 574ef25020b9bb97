"""Settings of SGD, the displacement they cause, and monitored steps."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.oracle import (
    square,
)
from undertow.torch import NoiseMonitor
from undertow.torch.census.axes import move, unfold

SETTINGS = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.8, "nesterov": True},
    "dampening": {"momentum": 0.9, "dampening": 0.6},
    "dampening without momentum": {"dampening": 0.6},
    "maximize": {"momentum": 0.5, "maximize": True},
}


STEP, DECAY = 0.1, 0.05


def displacement(options):
    """Return the total displacement that one gradient of 1 causes over all steps, by the optimiser itself."""
    parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=STEP, **options)
    for step in range(400):
        # the first gradient is 0: momentum starts from it without dampening
        parameter.grad = torch.tensor(float(step == 1), dtype=torch.float64)
        optimizer.step()
    return abs(float(parameter.detach()))


def monitored(model, symmetries, x, decay=0.0, **options):
    """Return the monitor of one step of a copy of the model."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP, weight_decay=decay, **options)
    with NoiseMonitor(model, symmetries, every=1) as monitor:
        square(model, x).backward()
        optimizer.step()
    return monitor


def linear_pair():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 4, bias=False)).double()


def move_to_equilibrium(model, reading):
    amount = torch.as_tensor(np.array(reading.amount))
    transform = amount.exp() if amount.ndim == 1 else torch.linalg.matrix_exp(amount)
    with torch.no_grad():
        for key, value in move(dict(model.named_parameters()), reading.symmetry, transform).items():
            model.get_parameter(key).copy_(value)


def weights(model, symmetry):
    """Return the sums of squares, or the Gram matrices, of both sides added up."""
    rows = [unfold(model.get_parameter(axis.parameter).detach(), axis).flatten(1) for axis in symmetry.axes]
    return sum(r.square().sum(1) if symmetry.block == 1 else r @ r.mT for r in rows).numpy()


def reported(words, measured):
    """Expect an error if nothing was measured yet, else a warning."""
    return pytest.warns(UserWarning, match=words) if measured else pytest.raises(RuntimeError, match=words)


def hooks_on(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def _raises(gradient):
    raise ZeroDivisionError
