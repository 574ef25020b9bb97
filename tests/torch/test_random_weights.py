"""Random weights: their size, and that they depend on the seed alone."""

import pytest
import torch
from torch import nn

from undertow.torch._random_weights import LARGE_PARAMETER, RandomWeights, fill_random, randomise

pytestmark = pytest.mark.torch


def network():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8, 300), nn.Linear(300, 300))


def test_random_weights_have_the_size_that_keeps_activations_moderate():
    model = network()
    randomise(model, 0)
    convolution, norm, _, first, large = model
    assert large.weight.numel() >= LARGE_PARAMETER > first.weight.numel()
    for weight, fan in ((convolution.weight, 27), (first.weight, 154), (large.weight, 300)):
        assert float(weight.detach().std() * fan**0.5) == pytest.approx(1.0, rel=0.15)
        assert abs(float(weight.detach().mean()) * fan**0.5) < 0.2
    assert (norm.weight > 0).all()
    assert all((p != 0).all() for p in model.parameters())
    # every bit of the integers is used: neighbours of a large parameter are independent, of both signs
    four = large.weight.detach().reshape(-1, 4)
    assert (torch.corrcoef(four.T) - torch.eye(4)).abs().max() < 0.03
    assert ((four > 0).float().mean(0) - 0.5).abs().max() < 0.02
    assert len(torch.unique(four)) > 40_000


def test_random_weights_depend_on_the_seed_alone():
    one, two = network(), network().double()
    weights = RandomWeights(one)
    weights.draw(5)
    weights.draw(3)
    randomise(two, 3)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-6, atol=1e-7)
    weights.draw(4)
    assert not any(torch.equal(a.double(), b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_parameter_is_filled_in_its_own_precision(dtype):
    for shape in ((20, 20), (300, 300)):
        values = torch.zeros(shape, dtype=dtype)
        fill_random(values, torch.Generator().manual_seed(0), gain=False, kernel=False)
        assert float(values.double().std()) * shape[0] ** 0.5 == pytest.approx(1.0, rel=0.1)
        assert (values != 0).all()
