"""Stacks of parameters, and sums over their entries along axes."""

import numpy as np
import pytest
import torch
from torch import nn

from undertow.torch.monitor.settings import ADAM, SGD, StepRule
from undertow.torch.monitor.stacks import Slot, Stack, reduce_to_axis, stack_sums

pytestmark = pytest.mark.torch


def test_reductions_to_an_axis():
    entries = torch.arange(48.0).reshape(2, 4, 3, 2)
    rows = entries.numpy()
    np.testing.assert_array_equal(reduce_to_axis(entries, 1, 1), rows.sum((1, 3)))
    # two matrices of two rows each, with columns of their own
    apart = rows.reshape(2, 2, 2, 3, 2).sum((2, 4)).reshape(2, 6)
    np.testing.assert_array_equal(reduce_to_axis(entries, 1, 2), apart)
    np.testing.assert_array_equal(reduce_to_axis(torch.ones(3), 0, 1), np.ones((3, 1)))


def stack_of(rule, gradient=True, plain=False):
    torch.manual_seed(0)
    parameters = {name: nn.Parameter(torch.randn(4, 3, dtype=torch.float64)) for name in "ab"}
    for p in parameters.values() if gradient else ():
        p.grad = torch.randn(4, 3, dtype=torch.float64)
    slots = tuple(Slot("a", axis, 1, 0.0, (4, 3)[axis]) for axis in (0, 1))
    own = Stack(("a", "b"), rule, (0, 1), slots, torch.device("cpu"), torch.float64, gradient, plain)
    with torch.no_grad():
        return own, parameters, stack_sums(own, dict.fromkeys("ab", rule), parameters, torch.ones(2).double())


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_sums_of_the_first_step_of_adam(gradient, plain):
    """With m = (1 - b1) g and v = (1 - b2) g^2; without a gradient nothing moves and v is 0."""
    rule = StepRule(ADAM, 0.1, betas=(0.9, 0.75), eps=0.5)
    own, parameters, sums = stack_of(rule, gradient, plain)
    x = np.stack([p.detach().numpy() for p in parameters.values()])
    g = np.stack([p.grad.numpy() for p in parameters.values()]) if gradient else np.zeros_like(x)
    mean, root = 0.1 * g, 0.5 * np.abs(g)
    inverse = root + 0.5
    expected = {"weight": x**2, "root": root * x**2, "inverse": inverse, "drive": root**2 / inverse}
    if gradient:
        expected |= {"gradient": g**2, "product": x * mean, "square": mean**2 / inverse}
    if gradient and plain:
        expected |= {"plain_product": x * mean / inverse, "plain_square": (mean / inverse) ** 2}
    assert set(own.fields) == set(expected)
    entries = np.concatenate([expected[name] for name in own.fields])
    for axis, values in enumerate(sums):
        np.testing.assert_allclose(values, entries.sum(2 - axis), rtol=1e-12, atol=1e-15)


def test_fields_that_are_not_computed_twice():
    """The direction of SGD without momentum is the gradient; a parameter without a gradient has no direction."""
    assert stack_of(StepRule(SGD, 0.1))[0].same == {"square": "gradient"}
    assert stack_of(StepRule(SGD, 0.1, momentum=0.9))[0].same == {}
    assert stack_of(StepRule(SGD, 0.1), gradient=False)[0].same == {}
    assert stack_of(StepRule(ADAM, 0.1, eps=1.0), plain=True)[0].same == {"metric": "inverse", "plain_weight": "weight"}
