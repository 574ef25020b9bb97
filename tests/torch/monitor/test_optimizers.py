"""Which optimiser counts the steps, and how the parameters are stepped."""

import pytest
import torch

from tests.torch.oracle import relu
from undertow.torch.monitor.optimizers import OptimizerTracker, followed_once

pytestmark = pytest.mark.torch


def test_the_first_optimiser_of_the_parameters_counts_as_long_as_it_makes_steps():
    model, other = relu(), relu()
    tracker = OptimizerTracker(dict(model.named_parameters()))
    first, second = (torch.optim.SGD(part.parameters(), lr) for part, lr in ((model[0], 0.1), (model, 0.2)))
    stranger = torch.optim.SGD(other.parameters(), 0.3)
    assert [tracker.counts(one) for one in (stranger, first, second, first, second)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert {name: rule.step_size for name, rule in tracker.rules().items()} == {
        "0.weight": 0.1, "0.bias": 0.1, "2.weight": 0.2, "2.bias": 0.2,
    }  # fmt: skip
    later = [tracker.counts(second) for _ in range(6)]
    assert later.index(True) <= 3
    assert all(later[later.index(True) :])  # the second one leads from then on


def test_an_optimiser_that_is_gone_does_not_lead():
    model = relu()
    tracker = OptimizerTracker(dict(model.named_parameters()))
    first = torch.optim.SGD(model.parameters(), 0.1)
    assert tracker.counts(first)
    del first
    assert tracker.counts(torch.optim.SGD(model.parameters(), 0.2))


def test_a_closure_is_followed_by_one_call_after_its_first_evaluation():
    calls = []
    closure = followed_once(lambda: calls.append("closure") or 3.0, lambda: calls.append("after"))
    assert [closure(), closure()] == [3.0, 3.0]
    assert calls == ["closure", "after", "closure"]
