"""Arrays of NumPy and tensors with the same functions."""

import numpy as np
import pytest
import torch

from undertow.torch.monitor.arrays import (
    add_by_index,
    array_on,
    as_array,
    joined_array,
    largest_by_index,
    least_by_index,
    namespace,
    number_table,
)

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def test_tables_of_numbers_and_tensors():
    """A step size on the device is shared by the parameters of a group."""
    shared, other = torch.tensor(0.5), torch.tensor([0.25], dtype=torch.float64)
    table = number_table([[1.0, shared, 0.1], [other, shared, 2.0]], torch.device("cpu"))
    assert table.dtype == np.float64
    assert table.tolist() == [[1.0, 0.5, 0.1], [0.25, 0.5, 2.0]]
    assert number_table([[1.0], [2.0]], torch.device("cpu")).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("shape", [(9,), (3, 9)])
def test_sums_and_extremes_by_index(as_tensor, shape):
    """Arrays and tensors give what a loop gives; an index without entries has the sum 0."""
    generator = np.random.default_rng(0)
    values, index = generator.random(shape), np.array([0, 2, 2, 0, 4, 4, 4, 2, 0])
    kind = torch.as_tensor if as_tensor else np.asarray
    for function, reduce, empty in (
        (add_by_index, np.sum, 0.0),
        (largest_by_index, np.max, 0.0),
        (least_by_index, np.min, np.inf),
    ):
        result = function(kind(values), kind(index), 5)
        assert isinstance(result, torch.Tensor) == as_tensor
        expected = np.full((*shape[:-1], 5), empty)
        for k in (0, 2, 4):
            expected[..., k] = reduce(values[..., index == k], axis=-1)
        np.testing.assert_allclose(result, expected, rtol=1e-14)


def test_arrays_of_the_host_share_the_memory_of_their_tensors():
    tensor = torch.zeros(3)
    array = as_array(tensor)
    assert namespace(array) is np
    assert namespace(tensor) is torch
    tensor[1] = 2.0
    assert array.tolist() == [0.0, 2.0, 0.0]
    joint = joined_array([tensor, torch.ones(1, dtype=torch.float64)], CPU)
    assert (joint.dtype, joint.tolist()) == (np.float64, [0.0, 2.0, 0.0, 1.0])
    assert array_on([[True, False]], CPU).tolist() == [[True, False]]
