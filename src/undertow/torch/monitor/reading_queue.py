"""Readings that a thread computes while training goes on, in the order of their steps."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["ReadingQueue"]

Result = TypeVar("Result")
MOST = 4
"""Readings that may wait at the same time: each holds the matrices of a step."""


class ReadingQueue(Generic[Result]):
    """Functions that one thread calls one after the other.

    >>> from undertow.torch.monitor.reading_queue import ReadingQueue
    >>> queue = ReadingQueue()
    >>> queue.submit(3, lambda: "three")
    >>> print(*queue.take(wait=True))
    (3, 'three')
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Future[Result]]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, step: int, function: Callable[[], Result]) -> None:
        """Add the function of a step."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="undertow")
        self._waiting.append((step, self._pool.submit(function)))

    def take(self, *, wait: bool) -> Iterator[tuple[int, Result | Exception]]:
        """Remove what is complete, or all of it (`wait`); return an iterator over steps and results or errors.

        Where too many wait, those above the limit are waited for.
        """
        while self._waiting:
            step, future = self._waiting[0]
            if not wait and not future.done() and len(self._waiting) <= MOST:
                return
            error = future.exception()
            self._waiting.popleft()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield step, future.result() if error is None else error
        if wait and self._pool is not None:
            self._pool.shutdown()
            self._pool = None
