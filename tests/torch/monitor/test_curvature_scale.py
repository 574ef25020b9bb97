"""The noise scale weighted by curvature and the curvature in Adam's metric, against closed forms for least squares."""

import pytest
import torch
from torch import nn

from undertow.torch import NoiseMonitor, census
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


def test_the_regime_of_adamw_is_that_of_the_data():
    """Batches are drawn with replacement from 40 samples, whose H and Sigma are known; S is in the optimiser."""
    torch.manual_seed(0)
    scales = torch.tensor([3.0, 1.0, 0.3], dtype=torch.float64)
    x = torch.randn(40, 3, dtype=torch.float64) * scales
    y = x @ torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64) + torch.randn(40, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        model[1].weight.copy_(torch.tensor([[1.0, -2.0]]))
    model[1].weight.requires_grad_(False)  # linear in what trains, so that H is the same at all parameters
    optimizer = torch.optim.AdamW([model[0].weight], lr=1e-2, betas=(0.9, 0.98))
    batch = lambda k: (x[k], y[k])
    with NoiseMonitor(model, every=1) as monitor:
        with pytest.raises(ValueError, match="has made no step"):
            monitor.measure_curvature([batch(torch.arange(8))] * 9, least_squares)
        for _ in range(5):
            optimizer.zero_grad()
            least_squares(model, batch(torch.randint(0, 40, (16,)))).backward()
            optimizer.step()
        curvature = monitor.measure_curvature([batch(torch.randint(0, 40, (16,))) for _ in range(900)], least_squares)
        # of the prediction, by the first matrix
        jacobian = torch.einsum("o,ni->noi", model[1].weight[0], x).flatten(1)
        rows = (model(x)[:, 0] - y).detach()[:, None] * jacobian
        root = (optimizer.state[model[0].weight]["exp_avg_sq"] / (1 - 0.98**5)).sqrt() + 1e-8
        optimizer.zero_grad()
        least_squares(model, batch(torch.arange(16))).backward()
        optimizer.step()  # the passes of the measurement belong to no step
        assert monitor.steps == 6
        assert not monitor.skipped
    hessian, metric = jacobian.T @ jacobian / 40, torch.diag(1 / root.flatten())
    covariance = (rows - rows.mean(0)).T @ (rows - rows.mean(0)) / 40
    exact = float(torch.trace(metric @ hessian @ metric @ covariance) / torch.trace(metric @ covariance))
    assert abs(curvature.value - exact) < 4 * curvature.error
    assert curvature.error < 0.1 * exact
    assert curvature.low < exact < curvature.high
    assert curvature.measurements == 300
    plain = float(torch.trace(hessian @ covariance) / torch.trace(covariance))
    assert abs(plain - exact) > 4 * curvature.error  # the test can tell it from the curvature without a metric


def test_rows_and_verdicts_have_the_regime_once_it_is_measured(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 1))
    draw = lambda: (torch.randn(16, 5), torch.randn(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    with NoiseMonitor(model, census(model, draw(), least_squares), every=1) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            least_squares(model, draw()).backward()
            optimizer.step()
            if step == 1:
                assert "was not measured" in monitor.report(tmp_path / "before.html").read_text()
                lam = monitor.measure_curvature([draw() for _ in range(60)], least_squares).value
    assert [row["regime"] for row in monitor.rows] == [None] + [pytest.approx(0.01 / (1e-3 * lam), rel=1e-9)] * 3
    (verdict,) = monitor.verdicts()
    assert verdict.regime == monitor.rows[-1]["regime"]
    assert "(1 - b2)/(eta lambda) = " in verdict.text
    assert ("outside" in verdict.text) == (verdict.regime >= 1)
    assert "was not measured" not in monitor.report(tmp_path / "after.html").read_text()
