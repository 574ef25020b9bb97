"""Small matrices: one thread, and one transfer."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from undertow.torch._threads import one_thread
from undertow.torch.monitor.signals import fetched

pytestmark = pytest.mark.torch


def blas() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_blas_has_one_thread_inside_and_what_it_had_after():
    before = blas()
    assert before
    with one_thread():
        assert set(blas()) == {1}
        with one_thread():
            assert set(blas()) == {1}
        assert set(blas()) == {1}
    assert blas() == before


def test_tensors_come_back_in_order_and_shape():
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(2.5), torch.zeros(0), torch.ones(2, 1, dtype=torch.int64)]
    found = fetched(tensors)
    assert all(x.dtype == np.float64 for x in found)
    for x, tensor in zip(found, tensors, strict=True):
        np.testing.assert_array_equal(x, tensor.numpy())
    assert fetched([]) == []
