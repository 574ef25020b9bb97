"""BLAS runs on one thread inside `one_thread`."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from threadpoolctl import threadpool_info

from undertow.torch._threads import limit_calling_thread, one_thread, single_threaded

pytestmark = pytest.mark.torch


def blas() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_blas_uses_one_thread_inside_and_the_previous_number_afterwards():
    before = blas()
    assert before
    with one_thread():
        assert set(blas()) == {1}
        with one_thread():
            assert set(blas()) == {1}
        assert set(blas()) == {1}
    assert blas() == before


def test_pytorch_uses_one_thread_too():
    before = torch.get_num_threads(), blas()
    with single_threaded():
        assert torch.get_num_threads() == 1
        assert set(blas()) == {1}
    assert (torch.get_num_threads(), blas()) == before


def test_the_limit_of_a_thread_does_not_change_others():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(1, initializer=limit_calling_thread) as pool:
            assert pool.submit(torch.get_num_threads).result() == 1
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
