"""A thread that computes a part of a measurement while training goes on.

Threads are used for a GPU only. There the host starts operations, and PyTorch releases Python's lock while it does so.
On a CPU a thread would take cores from training.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

from undertow.torch._threads import limit_calling_thread

__all__ = ["BackgroundQueue", "profiler_runs", "runs_in_background"]

Label = TypeVar("Label")
Result = TypeVar("Result")
DEVICES = ("cuda",)
"""Kinds of devices whose work is done in a thread."""


def runs_in_background(device: torch.device) -> bool:
    """Return whether work on tensors of a device is done in a thread."""
    return device.type in DEVICES and not profiler_runs()


def profiler_runs() -> bool:
    """Return whether PyTorch's profiler is on. Where it ends while a thread starts operations, the process crashes."""
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


class BackgroundQueue(Generic[Label, Result]):
    """Functions that one thread calls one after the other, on the stream of the caller.

    `most` bounds the sum of the sizes of the functions that wait.

    >>> from undertow.torch.monitor.background import BackgroundQueue
    >>> queue = BackgroundQueue(most=4)
    >>> queue.submit(3, lambda: "three")
    >>> print(*queue.take(wait=True))
    (3, 'three')
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: deque[tuple[Label, Future[Result], int]] = deque()
        self._size = 0
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, label: Label, function: Callable[[], Result], size: int = 1) -> None:
        """Add a function; `take` returns its result with the label."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="undertow", initializer=limit_calling_thread)
        self._waiting.append((label, self._pool.submit(_on_stream_of_caller(function)), size))
        self._size += size

    def take(self, *, wait: bool) -> Iterator[tuple[Label, Result | Exception]]:
        """Remove what is complete, or all of it (`wait`); return an iterator over labels and results or errors.

        Where too many wait, those above the limit are waited for.
        """
        while self._waiting:
            label, future, size = self._waiting[0]
            if not wait and not future.done() and self._size <= self.most:
                return
            error = future.exception()
            self._waiting.popleft()
            self._size -= size
            if error is not None and not isinstance(error, Exception):
                raise error
            yield label, future.result() if error is None else error

    def close(self) -> None:
        """Wait until the thread has called all functions, and end it."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _on_stream_of_caller(function: Callable[[], Result]) -> Callable[[], Result]:
    """Return a function that starts its operations on a GPU after those that the caller has started so far."""
    if not torch.cuda.is_initialized():
        return function
    stream = torch.cuda.current_stream()

    def run() -> Result:
        with torch.cuda.stream(stream):
            return function()

    return run
