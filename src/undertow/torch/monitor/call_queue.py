"""Calls of layers whose per-sample gradients a thread computes during the backward pass."""

import threading
from collections.abc import Callable

from torch import Tensor

from undertow.torch.monitor.background import BackgroundQueue, runs_in_background
from undertow.torch.monitor.layer_queue import GPU_BYTES
from undertow.torch.monitor.sites import Call

__all__ = ["CallQueue"]

SUBMITTED_BYTES = GPU_BYTES // 8
"""Inputs and derivatives of the calls that the thread gets at once: single calls would interrupt the pass too often."""


class CallQueue:
    """Calls that wait; `complete` is called for each of them, never for two at the same time.

    `fail` is called with the message of an error. At most `GPU_BYTES` of inputs and derivatives wait.
    """

    def __init__(self, complete: Callable[[Call], None], fail: Callable[[str], None]):
        self._complete, self._fail = complete, fail
        self._lock = threading.Lock()
        self._newest: list[Call] = []
        self._bytes = 0
        self._submitted: BackgroundQueue[None, None] = BackgroundQueue(GPU_BYTES)

    def add(self, call: Call, back: Tensor, *, alone: bool) -> None:
        """Complete a call, in a thread if it is for a GPU and can be completed beside others (`alone` is False)."""
        if alone or not runs_in_background(back.device):
            self._run([call])
            return
        self._newest.append(call)
        self._bytes += back.nbytes + sum(x.nbytes for x in call.inputs)
        if self._bytes >= SUBMITTED_BYTES:
            self._submit()
            self._check(wait=False)

    def finish(self) -> None:
        """Wait until all calls are complete."""
        if self._newest:
            self._submit()
        self._check(wait=True)

    def discard(self) -> None:
        """Discard the calls that the thread does not have yet, and wait for the others."""
        self._newest, self._bytes = [], 0
        self._check(wait=True)

    def close(self) -> None:
        """End the thread."""
        self._submitted.close()

    def _submit(self) -> None:
        calls, size = self._newest, self._bytes
        self._newest, self._bytes = [], 0
        self._submitted.submit(None, lambda: self._run(calls), size)

    def _run(self, calls: list[Call]) -> None:
        with self._lock:
            for call in calls:
                self._complete(call)

    def _check(self, *, wait: bool) -> None:
        for _, error in self._submitted.take(wait=wait):
            if isinstance(error, Exception):
                self._fail(f"{type(error).__name__}: {error}")
