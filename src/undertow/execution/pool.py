"""Run tasks on workers, with retries: a task whose worker dies runs again alone, to show which task kills its worker.

`verify` and sweeps both run their tasks with `run_tasks`.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from undertow.execution.workers import Workers

__all__ = ["Outcome", "TimeLimitError", "WorkerDiedError", "run_tasks"]

MAX_DEATHS = 2
"""A task fails when its worker has died this often while no other task was running."""
POLL_SECONDS = 1.0

T = TypeVar("T")
R = TypeVar("R")


class WorkerDiedError(Exception):
    """The worker of a task died: it was killed, or ran out of memory."""


class TimeLimitError(Exception):
    """A task took longer than its time limit."""


@dataclass(frozen=True)
class Outcome(Generic[T, R]):
    """The result of a task, or the error that it ended with."""

    task: T
    result: R | None = None
    error: BaseException | None = None


@dataclass
class _Entry(Generic[T]):
    task: T
    deaths: int = 0
    started: float = 0.0
    suspect: bool = False
    """Whether a worker died while this task was running; it then runs alone."""


def _first(waiting: Sequence[T], running: Sequence[T]) -> T | None:
    return waiting[0] if waiting else None


def run_tasks(
    workers: Workers,
    work: Callable[..., R],
    tasks: Iterable[T],
    *,
    payload: Callable[[T], object] = lambda task: task,
    slots: Callable[[], int] | None = None,
    choose: Callable[[Sequence[T], Sequence[T]], T | None] = _first,
    started: Callable[[T], object] = lambda task: None,
    time_limit: float | None = None,
) -> Generator[Outcome[T, R]]:
    """Run `work(payload(task))` for every task and yield each outcome as it comes.

    **Arguments:**

    - `slots`: how many tasks to run at once; `workers.slots` by default.
    - `choose`: picks the next of the waiting tasks, given those that are running; None waits for one to end.
    - `started`: called with a task when it is submitted.
    - `time_limit`: seconds after which a task is ended.

    >>> from undertow.execution.pool import run_tasks
    >>> from undertow.execution.workers import InProcess
    >>> [outcome.result for outcome in run_tasks(InProcess(), abs, [-1, 2])]
    [1, 2]
    """
    pool = _Pool(workers, work, tasks, payload, slots or (lambda: workers.slots), choose, started)
    poll = POLL_SECONDS if time_limit is None else min(POLL_SECONDS, time_limit / 4)
    while pool.unfinished:
        pool.submit()
        pool.collect(poll)
        if time_limit is not None:
            pool.end_overdue(time_limit)
        pool.submit()  # before the caller stores the outcomes: workers do not wait for the disk
        yield from pool.take_outcomes()


class _Pool(Generic[T, R]):
    """The tasks that wait, those that run, those that may have killed a worker, and outcomes not yet taken."""

    def __init__(
        self, workers: Workers, work: Callable[..., R], tasks: Iterable[T], payload: Callable[[T], object],
        slots: Callable[[], int], choose: Callable[[Sequence[T], Sequence[T]], T | None],
        started: Callable[[T], object],
    ):  # fmt: skip
        self.workers, self.work, self.payload = workers, work, payload
        self.slots, self.choose, self.started = slots, choose, started
        self.waiting: list[_Entry[T]] = [_Entry(task) for task in tasks]
        self.suspects: deque[_Entry[T]] = deque()
        self.running: dict[Future, _Entry[T]] = {}
        self.outcomes: list[Outcome[T, R]] = []

    @property
    def unfinished(self) -> bool:
        return bool(self.waiting or self.suspects or self.running or self.outcomes)

    def take_outcomes(self) -> list[Outcome[T, R]]:
        """Return the outcomes since the last call."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def submit(self) -> None:
        """Submit as many tasks as there are slots; a suspect runs alone."""
        while (entry := self._next()) is not None:
            try:
                future = self.workers.submit(self.work, self.payload(entry.task))
            except self.workers.death_errors:
                self.waiting.insert(0, entry)
                self._on_worker_death()
                return
            entry.started = time.monotonic()
            self.running[future] = entry
            self.started(entry.task)

    def _next(self) -> _Entry[T] | None:
        if self.suspects:
            return None if self.running else self.suspects.popleft()
        if any(entry.suspect for entry in self.running.values()):
            return None
        if len(self.running) >= self.slots():
            return None
        chosen = self.choose([e.task for e in self.waiting], [e.task for e in self.running.values()])
        if chosen is None:
            return None
        index = next(k for k, entry in enumerate(self.waiting) if entry.task is chosen)
        return self.waiting.pop(index)

    def collect(self, seconds: float) -> None:
        """Wait for tasks to end, at most so many seconds, and record their outcomes."""
        done, _ = wait(self.running, timeout=seconds, return_when=FIRST_COMPLETED)
        if not done:
            self.workers.check()
        for future in done:
            self._record(future)
        if any(future in self.running for future in done):
            self._on_worker_death()

    def _record(self, future: Future) -> None:
        """Record the outcome of a task that ended, unless its worker died and will be restarted."""
        entry = self.running[future]
        try:
            outcome = Outcome(entry.task, future.result())
        except self.workers.death_errors as error:
            if self.workers.restartable:
                return
            outcome = Outcome(entry.task, error=WorkerDiedError(f"its worker died repeatedly ({type(error).__name__})"))
        except CancelledError as error:
            raise self.workers.unreachable_error() from error
        except Exception as error:
            outcome = Outcome(entry.task, error=error)
        del self.running[future]
        self.outcomes.append(outcome)

    def _on_worker_death(self) -> None:
        """Restart the workers. Each task that was running may have killed one, so each runs alone next."""
        self._record_finished()
        lost = list(self.running.values())
        self.running.clear()
        self.workers.restart()
        for entry in lost:
            entry.deaths += len(lost) == 1
            if entry.deaths >= MAX_DEATHS:
                error = WorkerDiedError("its process died (killed, or out of memory)")
                self.outcomes.append(Outcome(entry.task, error=error))
            else:
                entry.suspect = True
                self.suspects.append(entry)

    def _record_finished(self) -> None:
        for future in [future for future in self.running if future.done() and not future.cancelled()]:
            self._record(future)

    def end_overdue(self, limit: float) -> None:
        """End tasks that have run longer than the limit; tasks lost with them run again."""
        for future, entry in list(self.running.items()):
            if future not in self.running or future.done() or time.monotonic() - entry.started <= limit:
                continue
            del self.running[future]
            others_lost = self.workers.end(future)
            error = TimeLimitError(f"it took longer than the limit of {limit:g} s")
            self.outcomes.append(Outcome(entry.task, error=error))
            if others_lost:
                self._record_finished()
                self.waiting[:0] = self.running.values()
                self.running.clear()
