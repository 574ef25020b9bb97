"""The result of `equilibrate`: undo, largest steps and the printed table."""

import numpy as np
import pytest
import torch

from tests.torch.tasks import relu_task
from undertow.estimate import Estimate
from undertow.torch import Equilibrium, census, equilibrate

pytestmark = pytest.mark.torch


def test_undo_restores_every_bit():
    model, batches, loss = relu_task()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss(model, batches[0]).backward()
    optimizer.step()
    states = lambda: (
        [p.detach().clone() for p in model.parameters()]
        + [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
    )
    before = states()
    symmetries = census(model, batches[0], loss)
    done = equilibrate(model, batches, loss, symmetries, step_size=0.1, optimizer=optimizer)
    moved = states()
    assert not all(torch.equal(a, b) for a, b in zip(before, moved, strict=True))
    done.undo()
    assert all(torch.equal(a, b) for a, b in zip(before, states(), strict=True))


def test_undo_after_a_change_of_dtype():
    net, batches, loss = relu_task()
    before = net[0].weight.detach().clone()
    done = equilibrate(net, batches, loss, census(net, batches[0], loss), step_size=0.1)
    net.double()
    done.undo()
    assert net[0].weight.dtype == torch.float64
    assert torch.equal(net[0].weight, before.double())


def estimate(value):
    return Estimate(value, 0.1 * value, 4)


def equilibrium(curvature):
    pair = (estimate(2.0), estimate(1.0))
    return Equilibrium((), (), pair, pair, (curvature, estimate(0.5)), 0.0, 1)


def test_the_largest_step_is_two_over_the_curvature():
    before, after = equilibrium(estimate(4.0)).largest_step
    assert (before.value, after.value) == (0.5, 4.0)
    assert before.standard_error == pytest.approx(0.05)  # the relative error is that of the curvature
    assert equilibrium(estimate(-1.0)).largest_step[0].value == np.inf
    assert np.isnan(equilibrium(estimate(np.nan)).largest_step[0].value)


def test_the_table_reports_an_unknown_curvature():
    assert "cannot be differentiated twice" in str(equilibrium(estimate(np.nan)))
    assert "differentiated" not in str(equilibrium(estimate(4.0)))
