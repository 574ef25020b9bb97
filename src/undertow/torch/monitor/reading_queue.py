"""Results that a thread computes while training goes on, in the order of their steps."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from undertow.torch._threads import limit_calling_thread

__all__ = ["ReadingQueue"]

Label = TypeVar("Label")
Result = TypeVar("Result")
MOST = 4
"""Results that may wait at the same time: each holds the numbers of a step."""


class ReadingQueue(Generic[Label, Result]):
    """Functions that one thread calls one after the other.

    >>> from undertow.torch.monitor.reading_queue import ReadingQueue
    >>> queue = ReadingQueue()
    >>> queue.submit(3, lambda: "three")
    >>> print(*queue.take(wait=True))
    (3, 'three')
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Label, Future[Result]]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, label: Label, function: Callable[[], Result]) -> None:
        """Add a function; `take` returns its result with the label."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="undertow", initializer=limit_calling_thread)
        self._waiting.append((label, self._pool.submit(function)))

    def take(self, *, wait: bool) -> Iterator[tuple[Label, Result | Exception]]:
        """Remove what is complete, or all of it (`wait`); return an iterator over labels and results or errors.

        Where too many wait, those above the limit are waited for.
        """
        while self._waiting:
            label, future = self._waiting[0]
            if not wait and not future.done() and len(self._waiting) <= MOST:
                return
            error = future.exception()
            self._waiting.popleft()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield label, future.result() if error is None else error
        if wait and self._pool is not None:
            self._pool.shutdown()
            self._pool = None
