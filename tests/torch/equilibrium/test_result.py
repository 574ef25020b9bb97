"""The result of `equilibrate`: undo, largest steps and the printed table."""

import numpy as np
import pytest
import torch

from tests.torch.families import known_census, task
from tests.torch.tasks import relu_task
from undertow.estimate import Estimate
from undertow.torch import Equilibrium, census, equilibrate
from undertow.torch.equilibrium.result import format_resolved

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


def test_a_curvature_that_is_not_resolved_is_not_shown():
    shown = str(equilibrium(Estimate(4.0, 1.3, 8)))
    assert "largest curvature: not resolved on 8 batches (it takes 10 or more) -> 0.5 ± 0.05" in shown
    assert "largest stable step" not in shown
    assert "largest curvature: 4 ± 1 -> 0.5 ± 0.05" in str(equilibrium(Estimate(4.0, 1.1, 8)))
    assert "largest stable step: 0.5 ± 0.1 -> 4 ± 0.4" in str(equilibrium(Estimate(4.0, 1.1, 8)))
    assert "not resolved on 8 batches (it takes 90 or more)" in str(equilibrium(Estimate(1.0, 1.0, 8)))
    assert "its sign is not known" in str(equilibrium(Estimate(-1.0, 4.0, 8)))
    assert format_resolved(Estimate(1.0, 0.6, 8), 16) == (
        "not resolved on 8 of 16 batches (it takes 40 or more, so that the others were not used)"
    )
    assert format_resolved(Estimate(1.0, 0.6, 8), 64) == "not resolved on 8 of 64 batches (it takes 40 or more)"
    assert format_resolved(Estimate(-1.0, 4.0, 8), 64) == "not resolved on 8 of 64 batches (its sign is not known)"
    assert "4 on 2 batches, of unknown error" in str(equilibrium(Estimate(4.0, np.nan, 2)))


def test_the_table_shows_the_largest_move_first():
    model, batches, loss = relu_task(count=6)
    with torch.no_grad():
        model[4].weight *= 8
    symmetries = census(model, batches[0], loss)
    done = equilibrate(model, batches, loss, symmetries, step_size=0.1, dry_run=True)
    table = done.table()
    assert table.title == "2 symmetries would be moved"
    assert [row[-1].split("[")[0] for row in table.rows] == ["2.weight", "0.weight"]
    factors = {m.symmetry.minus[0].parameter: m.factor for m in done.moved}
    assert float(table.rows[0][4]) == pytest.approx(factors["2.weight"], rel=0.01)
    assert "dry run: the model was not changed" in str(done)
    assert "<table>" in done._repr_html_()


def test_the_factor_counts_powers():
    model, batches, loss = task("relu^2")
    before = model[2].weight.detach().clone()
    done = equilibrate(model, batches, loss, known_census("relu^2"), step_size=0.1)
    (squared,) = [m for m in done.moved if any(axis.power == 2 for axis in m.symmetry.axes)]
    assert squared.factor == pytest.approx(np.exp(2 * np.abs(squared.amount).max()))
    assert not torch.equal(before, model[2].weight)


def test_the_table_reports_an_unknown_curvature():
    assert "cannot be differentiated twice" in str(equilibrium(estimate(np.nan)))
    assert "differentiated" not in str(equilibrium(estimate(4.0)))
