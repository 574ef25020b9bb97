"""The noise scale weighted by curvature, against its closed form for least squares."""

import pytest
import torch
from torch import nn

from undertow.torch.monitor.curvature_scale import curvature_noise_scale

pytestmark = pytest.mark.torch


def least_squares(model, batch):
    x, y = batch
    return (model(x)[:, 0] - y).square().mean() / 2


def test_it_is_that_of_the_data():
    """Batches are drawn with replacement from 40 samples, whose H, G and Sigma are known."""
    torch.manual_seed(0)
    scales = torch.tensor([3.0, 1.0, 0.3], dtype=torch.float64)
    x = torch.randn(40, 3, dtype=torch.float64) * scales
    y = x @ torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64) + torch.randn(40, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():  # the steep direction is nearly solved: the signal is elsewhere, and the noise is in it
        model.weight.copy_(torch.tensor([[0.9, 0.0, 0.0]]))
    rows = ((model(x)[:, 0] - y)[:, None] * x).detach()
    hessian, mean = x.T @ x / 40, rows.mean(0)
    covariance = (rows - mean).T @ (rows - mean) / 40
    exact = float(torch.trace(hessian @ covariance) / (mean @ hessian @ mean))
    simple = float(torch.trace(covariance) / (mean @ mean))
    draws = [torch.randint(0, 40, (32,)) for _ in range(1500)]
    scale = curvature_noise_scale(model, [(x[k], y[k]) for k in draws], least_squares, batch_size=32)
    assert scale.measurements == 500
    assert abs(scale.value - exact) < 4 * scale.error
    assert scale.low < exact < scale.high
    assert scale.error < 0.2 * exact
    assert abs(simple - exact) > 4 * scale.error  # the test can tell it from the simple noise scale


def test_few_batches_are_an_error():
    with pytest.raises(ValueError, match="8 batches have no standard error"):
        curvature_noise_scale(nn.Linear(1, 1), [torch.ones(2, 1)] * 8, lambda m, x: m(x).sum(), batch_size=2)
