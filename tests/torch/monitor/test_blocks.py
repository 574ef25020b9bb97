"""GL symmetries under SGD whose sides have settings of their own."""

import copy

import numpy as np
import pytest
import torch

from tests.torch.flows import linear_pair, move_to_equilibrium
from tests.torch.oracle import census_of, square
from undertow.torch import NoiseMonitor
from undertow.torch.monitor.blocks import rank_rtol

pytestmark = pytest.mark.torch


def test_a_gl_with_two_step_sizes_is_balanced_at_its_equilibrium():
    """h_u/2 N_u + lambda_w WW' = h_w/2 N_w + lambda_u U'U as matrices, after a move by the amount."""
    model, x = linear_pair(), torch.randn(20, 5, dtype=torch.float64)
    symmetries = census_of(model, x[:4])
    settings = {"0.weight": (0.1, 0.02), "1.weight": (0.03, 0.3)}
    readings = []
    for _ in range(2):
        own = copy.deepcopy(model)
        groups = [{"params": [own.get_parameter(n)], "lr": h, "weight_decay": d} for n, (h, d) in settings.items()]
        with NoiseMonitor(own, symmetries, every=1) as monitor:
            square(own, x).backward()
            torch.optim.SGD(groups).step()
        readings.append(monitor.last[0])
        move_to_equilibrium(model, monitor.last[0])
    assert readings[0].row["distance"] > 0.1
    assert readings[1].row["distance"] < 1e-8
    (plus,), (minus,) = readings[1].symmetry.plus, readings[1].symmetry.minus
    gram = lambda axis: (lambda w: w @ w.T)(own.get_parameter(axis.parameter).detach().movedim(axis.axis, 0).numpy())
    # the parameters of `own` have made one step since the measurement: measure the weights before it
    own = linear_pair()
    move_to_equilibrium(own, readings[0])
    (h_plus, d_plus), (h_minus, d_minus) = settings[plus.parameter], settings[minus.parameter]
    up = h_plus / 2 * readings[1].noise_plus[0] + d_minus * gram(minus)
    down = h_minus / 2 * readings[1].noise_minus[0] + d_plus * gram(plus)
    np.testing.assert_allclose(up, down, atol=1e-9 * np.abs(up).max())


def test_rounding_grows_with_the_block():
    assert rank_rtol(4, [torch.float64]) == 1e-10
    assert rank_rtol(64, [torch.float64, torch.float32]) == pytest.approx(8 * 64 * 2**-23)
    assert rank_rtol(64, [torch.bfloat16]) == rank_rtol(64, [torch.float32])
