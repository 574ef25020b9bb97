"""Sums for the weight and the bias of a dense layer, against the gradients of the samples."""

import numpy as np
import pytest
import torch

from undertow.torch.monitor import dense_sums
from undertow.torch.monitor.dense_sums import DenseSums
from undertow.torch.monitor.layers import layer_gradients
from undertow.torch.monitor.statistics import Autotuner, StatisticRequest, batch_statistics

pytestmark = pytest.mark.torch

SAMPLES, INPUTS, OUTPUTS = 11, 4, 3


@pytest.fixture
def factors():
    torch.manual_seed(0)
    out, into = (torch.randn(SAMPLES, n, dtype=torch.float64) for n in (OUTPUTS, INPUTS))
    return out, into, torch.randn(INPUTS, dtype=torch.float64)


@pytest.mark.parametrize("cached", [2**20, 200, 1])
@pytest.mark.parametrize(("by_output", "by_input"), [(True, True), (True, False), (False, True)])
def test_sums_are_those_of_the_gradients_of_samples(factors, monkeypatch, cached, by_output, by_input):
    """For all samples at once, for a few of them with a smaller last part, and one by one."""
    monkeypatch.setattr(dense_sums, "CACHED_BYTES", cached)
    out, into, vector = factors
    gradients = out[:, :, None] * into[:, None]
    sums = DenseSums(out, into, vector)
    found = sums.weight(by_output=by_output, by_input=by_input)
    zero = lambda wanted, values: values if wanted else torch.zeros_like(values)
    np.testing.assert_allclose(found.by_output, zero(by_output, gradients.square().sum((0, 2))), rtol=1e-12)
    np.testing.assert_allclose(found.by_input, zero(by_input, gradients.square().sum((0, 1))), rtol=1e-12)
    np.testing.assert_allclose(found.probe, gradients.sum(0) @ vector, rtol=1e-10)
    for one in (sums, DenseSums(out, into, vector)):  # with the weight, and alone
        squares, total = one.bias()
        np.testing.assert_allclose(squares, out.square().sum(0), rtol=1e-12)
        np.testing.assert_allclose(total, out.sum(0), rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_without_positions_uses_them(dtype):
    torch.manual_seed(0)
    layer = torch.nn.Linear(INPUTS, OUTPUTS)
    into, out = torch.randn(SAMPLES, INPUTS).to(dtype), torch.randn(SAMPLES, OUTPUTS).to(dtype)
    uses = layer_gradients(layer, into, out, SAMPLES, 0, ("weight", "bias"))
    assert uses["weight"].sums is uses["bias"].sums is not None
    requests = [StatisticRequest("weight", axis) for axis in (0, 1)]
    gradients = uses["weight"].formed()
    for found, axes in zip(batch_statistics([uses["weight"]], requests, Autotuner()), ((0, 2), (0, 1)), strict=True):
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found, gradients.square().sum(axes), rtol=1e-5)
    (squares,) = batch_statistics([uses["bias"]], [StatisticRequest("bias", 0)], Autotuner())
    np.testing.assert_allclose(squares, uses["bias"].gradients.square().sum(0), rtol=1e-5)
    np.testing.assert_allclose(uses["weight"].probe(), next(iter(uses["weight"].chunks(1))).probe(), rtol=1e-4)
