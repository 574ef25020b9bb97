"""The worker pool: retries, suspects that run alone, time limits, and the choice of the next task.

`Scripted` workers need no processes: each task names what happens to it.
"""

import multiprocessing.queues
import os
import sys
import time
from concurrent.futures import CancelledError, Future

import pytest

from tests.execution.light import pool as light_processes
from undertow.execution import pool
from undertow.execution.pool import TimeLimitError, WorkerDiedError, run_tasks
from undertow.execution.workers import InProcess, Processes, WorkersUnreachableError


class DeathError(Exception):
    """The error of the futures of a worker that died."""


class Scripted(InProcess):
    """Workers whose tasks all end when `slots` of them run; a task in `deadly` then kills all that run."""

    restartable = True
    death_errors = (DeathError,)

    def __init__(self, slots=1, deadly=()):
        super().__init__()
        self.slots, self.deadly = slots, list(deadly)
        self.running: list[tuple[Future, object, object]] = []
        self.batches: list[list[object]] = []
        self.restarts = 0

    def submit(self, work, task):
        future: Future = Future()
        self.running.append((future, work, task))
        return future

    def finish_all(self):
        """End every running task: with its result, or with the death of the workers."""
        running, self.running = self.running, []
        if running:
            self.batches.append([task for _, _, task in running])
        dead = [task for _, _, task in running if task in self.deadly]
        for task in dead:
            self.deadly.remove(task)
        for future, work, task in running:
            if dead:
                future.set_exception(DeathError())
            else:
                future.set_result(work(task))

    def restart(self):
        self.restarts += 1
        self.running = []


@pytest.fixture
def scripted(monkeypatch):
    """Let the pool wait for a batch by ending it."""

    def use(workers):
        real = pool.wait
        monkeypatch.setattr(pool, "wait", lambda *a, **k: (workers.finish_all(), real(*a, **k))[1])
        return workers

    return use


def outcomes(workers, tasks, **more):
    return {outcome.task: outcome for outcome in run_tasks(workers, lambda task: task * 2, tasks, **more)}


def test_results_and_errors_are_outcomes():
    def work(task):
        if task == 2:
            raise ArithmeticError("two")
        return task * 10

    found = list(run_tasks(InProcess(), work, [1, 2, 3]))
    assert [outcome.result for outcome in found] == [10, None, 30]
    assert isinstance(found[1].error, ArithmeticError)


def test_a_task_whose_worker_dies_once_runs_again(scripted):
    workers = scripted(Scripted(deadly=["b"]))
    found = outcomes(workers, ["a", "b", "c"])
    assert {task: outcome.result for task, outcome in found.items()} == {"a": "aa", "b": "bb", "c": "cc"}
    assert workers.restarts == 1


def test_suspects_run_alone_before_other_tasks(scripted):
    workers = scripted(Scripted(slots=2, deadly=["b"]))
    found = outcomes(workers, ["a", "b", "c", "d"])
    assert all(outcome.error is None for outcome in found.values())
    assert workers.batches == [["a", "b"], ["a"], ["b"], ["c", "d"]]


def test_a_task_that_kills_its_worker_repeatedly_fails_and_the_others_finish(scripted):
    workers = scripted(Scripted(slots=3, deadly=["b"] * 9))
    found = outcomes(workers, ["a", "b", "c", "d"])
    assert isinstance(found["b"].error, WorkerDiedError)
    assert "process died" in str(found["b"].error)
    assert [found[task].result for task in "acd"] == ["aa", "cc", "dd"]
    assert sum("b" in batch for batch in workers.batches) == 1 + pool.MAX_DEATHS


def test_workers_that_restart_by_themselves_report_a_death_as_an_error(scripted):
    workers = scripted(Scripted(deadly=["a"]))
    workers.restartable = False
    found = outcomes(workers, ["a", "b"])
    assert "died repeatedly (DeathError)" in str(found["a"].error)
    assert found["b"].result == "bb"


def test_cancelled_tasks_mean_that_the_workers_cannot_be_reached():
    workers = Scripted()

    def submit(work, task):
        future: Future = Future()
        future.set_exception(CancelledError())
        return future

    workers.submit = submit
    with pytest.raises(WorkersUnreachableError, match="cancelled"):
        outcomes(workers, ["a"])


def test_the_next_task_is_chosen_from_those_that_wait_and_those_that_run(scripted):
    """Never two tasks with the same first letter at a time; None waits."""
    workers = scripted(Scripted(slots=3))

    def choose(waiting, running):
        return next((task for task in waiting if all(task[0] != other[0] for other in running)), None)

    found = outcomes(workers, ["a1", "a2", "a3", "b1"], choose=choose)
    assert set(found) == {"a1", "a2", "a3", "b1"}
    assert workers.batches == [["a1", "b1"], ["a2"], ["a3"]]


def test_slots_may_change_while_tasks_run(scripted):
    workers = scripted(Scripted())
    counts = iter([1, 1])
    outcomes(workers, list("abcdef"), slots=lambda: next(counts, 5))
    assert len(workers.batches[0]) < len(workers.batches[-1])


def test_payloads_are_made_when_a_task_is_submitted_and_starts_are_reported(scripted):
    workers, started = scripted(Scripted()), []
    found = list(run_tasks(workers, str.upper, [1, 2], payload=lambda task: f"task {task}", started=started.append))
    assert [outcome.result for outcome in found] == ["TASK 1", "TASK 2"]
    assert started == [1, 2]


def sleep_or_die(task):
    if task == "hang":
        time.sleep(600)
    if task == "die":
        os._exit(9)
    return task


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_without_memory_for_its_threads_is_an_error(monkeypatch):
    """The thread of the executor ended, and its tasks waited: a sweep hung. Since Python 3.12 the executor breaks."""

    def no_thread(queue):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(multiprocessing.queues.Queue, "_start_thread", no_thread)
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.1)
    workers = Processes(1, light_processes)
    try:
        if sys.version_info >= (3, 12):
            (outcome,) = run_tasks(workers, abs, [-1])
            assert isinstance(outcome.error, WorkerDiedError)
            assert "out of memory" in str(outcome.error)
        else:
            with pytest.raises(WorkersUnreachableError, match="no memory for another thread"):
                list(run_tasks(workers, abs, [-1]))
    finally:
        workers.close()


def test_in_processes_a_task_over_its_limit_ends_and_the_others_finish():
    workers = Processes(2, light_processes)
    try:
        found = {o.task: o for o in run_tasks(workers, sleep_or_die, ["hang", "a", "die", "b"], time_limit=4.0)}
    finally:
        workers.close()
    assert isinstance(found["hang"].error, TimeLimitError)
    assert "longer than the limit of 4 s" in str(found["hang"].error)
    assert isinstance(found["die"].error, WorkerDiedError)
    assert [found[task].result for task in "ab"] == ["a", "b"]
