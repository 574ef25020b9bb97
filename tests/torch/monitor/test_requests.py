"""Statistics that symmetries share are requested once, and moments of a step are those of its tensors."""

import numpy as np
import pytest
import torch
from torch import nn

from undertow.torch import Axis, Census, Symmetry
from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.requests import Requests, StepMoments

pytestmark = pytest.mark.torch


def census_with(*symmetries):
    return Census(tuple(symmetries), (), (), (), (), ())


def symmetry(axis, block=1):
    return Symmetry("", (axis,), (), block, True, 0.0)


ROWS = Axis("weight", 0, np.arange(4)[:, None], 4)
SHIFTED = Axis("weight", 0, np.arange(4)[:, None], 4, shift=1.0)
COLUMNS = Axis("weight", 1, np.arange(3)[:, None], 3)


def test_scales_of_one_axis_share_a_request():
    first, shifted, block, columns = symmetry(ROWS), symmetry(SHIFTED), symmetry(ROWS, 2), symmetry(COLUMNS)
    requests = Requests(census_with(first, shifted, block, columns))
    assert len(requests.all()) == 3
    assert requests.of(ROWS, first) is requests.of(SHIFTED, shifted)
    assert requests.of(ROWS, block).index.shape == (2, 2, 1)
    assert requests.of(COLUMNS, columns).axis == 1


def test_moments_of_weights_and_gradients():
    shifted, block = symmetry(SHIFTED), symmetry(ROWS, 2)
    census = census_with(shifted, block)
    requests = Requests(census)
    weight = nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    weight.grad = torch.randn(4, 3, dtype=torch.float64)
    sums = BatchSums()
    sums.sums = {requests.of(ROWS, block): torch.ones(2, 2, 2)}
    moments = StepMoments(census, requests, {"weight": weight}, sums)
    value = weight.detach().numpy()
    np.testing.assert_allclose(moments.weight(requests.of(SHIFTED, shifted), 1.0), ((value + 1) ** 2).sum(1))
    pairs = value.reshape(2, 2, 3)
    np.testing.assert_allclose(moments.weight(requests.of(ROWS, block), 0.0), pairs @ pairs.swapaxes(1, 2))
    samples, gradient = moments.samples_and_gradient(requests.of(ROWS, block))
    pairs = weight.grad.numpy().reshape(2, 2, 3)
    np.testing.assert_allclose(gradient, pairs @ pairs.swapaxes(1, 2))
    np.testing.assert_allclose(samples, 1.0)
    assert moments.samples_and_gradient(requests.of(SHIFTED, shifted)) is None
