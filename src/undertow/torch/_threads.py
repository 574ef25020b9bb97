"""How many threads work on small matrices: one. With more they wait for each other, on many cores most of the time."""

import functools
from collections.abc import Generator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


@functools.cache
def _libraries() -> ThreadpoolController:
    """Looking for them takes longer than what is to be done."""
    import scipy.linalg  # noqa: F401 (jax brings it, and its own BLAS with it)

    return ThreadpoolController()


@contextmanager
def one_thread() -> Generator[None]:
    """The BLAS of NumPy and of SciPy, which jax uses on a processor, on one thread."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield
