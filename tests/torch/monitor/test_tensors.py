"""Transfer and precision of tensors."""

import numpy as np
import pytest
import torch

from undertow.torch.monitor.tensors import at_least_single, joined, on_device, tensors_in, to_numpy

pytestmark = pytest.mark.torch


def test_tensors_are_returned_in_order_and_shape():
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(2.5), torch.zeros(0), torch.ones(2, 1, dtype=torch.int64)]
    arrays = to_numpy(tensors)
    assert all(x.dtype == np.float64 for x in arrays)
    for x, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_array_equal(x, tensor.numpy())
    assert to_numpy([]) == []


def test_half_precision_becomes_single():
    kinds = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float64: torch.float64}
    for dtype, expected in kinds.items():
        assert at_least_single(torch.ones(2, dtype=dtype)).dtype == expected


def test_tensors_inside_trees():
    one, two = torch.ones(1), torch.zeros(2)
    assert tensors_in((one, {"key": [two, 3]}, None)) == [one, two]


def test_tensors_of_any_precision_are_joined():
    device = torch.device("cpu")
    together = joined([torch.ones(2, 1), torch.zeros(1, dtype=torch.float64), torch.full((1,), 3.0)], device)
    assert together.dtype == torch.float64
    assert together.tolist() == [1.0, 1.0, 0.0, 3.0]
    assert on_device(together, device) is together
    numbers = joined([torch.tensor(1.5), torch.tensor(2.0, dtype=torch.float64)], device)
    assert (numbers.dtype, numbers.tolist()) == (torch.float64, [1.5, 2.0])
