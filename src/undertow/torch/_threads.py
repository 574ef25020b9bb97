"""Limit BLAS to one thread for work on small matrices, where several threads mostly wait for each other."""

import functools
from collections.abc import Generator
from contextlib import contextmanager

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["limit_calling_thread", "one_thread", "single_threaded"]


@functools.cache
def _libraries() -> ThreadpoolController:
    """Return the loaded BLAS libraries. The search takes longer than the work it is for, hence the cache."""
    import scipy.linalg  # noqa: F401 (JAX loads it, with a BLAS of its own)

    return ThreadpoolController()


@contextmanager
def one_thread() -> Generator[None]:
    """Run the BLAS of NumPy and of SciPy (which JAX uses on a CPU) on one thread."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def single_threaded() -> Generator[None]:
    """Run PyTorch too on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_thread():
            yield
    finally:
        torch.set_num_threads(threads)


def limit_calling_thread() -> None:
    """Let the thread that calls this run PyTorch on one core; OpenMP counts by the thread that starts the work."""
    torch.get_num_threads()  # the first call of a thread sets its number to that of the process
    _libraries().limit(limits=1, user_api="openmp")
