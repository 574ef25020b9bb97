"""Noise, cost and imbalance against the variances of the gradients of the batches."""

import copy

import numpy as np
import pytest
import torch

from tests.torch.oracle import relu, relu_census, square
from undertow.torch import equilibrate

pytestmark = pytest.mark.torch


def test_measurements_before_and_after_the_move():
    """Noise, imbalance, cost and the final balance equal those from the variances of the gradients."""
    model, step, decay = relu(), 0.2, 0.03
    batches = list(torch.randn(12, 6, 5, dtype=torch.float64))

    def variances():
        params = dict(model.named_parameters())
        rows = [torch.autograd.grad(square(model, batch), list(params.values())) for batch in batches]
        return {name: torch.stack(g).var(0).numpy() for name, g in zip(params, zip(*rows, strict=True), strict=True)}

    def sides(variances):
        return variances["2.weight"].sum(0), variances["0.weight"].sum(1) + variances["0.bias"]

    variance = variances()
    power = sum(v.sum() for v in variance.values())
    penalty = sum(float(p.detach().square().sum()) for p in model.parameters())
    out, into = sides(variance)
    done = equilibrate(copy.deepcopy(model), batches, square, relu_census(), step_size=step)
    assert done.noise[0].value == pytest.approx(power, rel=1e-9)
    assert done.moved[0].imbalance[0] == pytest.approx(np.abs(np.log(out / into)).max(), rel=1e-9)
    for sharp, largest in zip(done.curvature, done.largest_step, strict=True):
        assert largest.value == pytest.approx(2 / sharp.value)
        assert largest.standard_error / largest.value == pytest.approx(sharp.standard_error / sharp.value)
    done = equilibrate(model, batches, square, relu_census(), step_size=step, weight_decay=decay)
    assert done.cost[0].value == pytest.approx(step / 4 * power + decay / 2 * penalty, rel=1e-9)
    assert done.cost[0].standard_error == pytest.approx(step / 4 * done.noise[0].standard_error, rel=1e-9)
    noise = np.subtract(*sides(variances()))
    charge = np.subtract(*sides({name: p.detach().numpy() ** 2 for name, p in model.named_parameters()})) / 2
    np.testing.assert_allclose(step / 2 * noise, 2 * decay * charge, atol=1e-6 * np.abs(noise).max())
