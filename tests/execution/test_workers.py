"""Workers run tasks, restart their processes, and say how many tasks to run at once."""

import os
import time

import pytest

from tests.execution.light import pool
from undertow.execution.workers import InProcess, Processes


def test_this_process_runs_a_task_at_once_and_cannot_end_it():
    workers = InProcess()
    assert workers.submit(abs, -2).result() == 2
    assert isinstance(workers.submit(int, "x").exception(), ValueError)
    with pytest.raises(RuntimeError, match="cannot be ended"):
        workers.end(workers.submit(abs, 1))


@pytest.mark.parametrize(("platform", "slots"), [("cpu", 3), ("gpu", 1)])
def test_processes_share_an_accelerator(platform, slots):
    workers = Processes(3, pool)
    try:
        assert workers.slots_on(platform) == slots
        assert InProcess().slots_on(platform) == 1
    finally:
        workers.close()


def process_id(_):
    return os.getpid()


def test_processes_restart_and_end_with_what_they_compute():
    workers = Processes(1, pool)
    try:
        first = workers.submit(process_id, None).result(timeout=60)
        workers.restart()
        second = workers.submit(process_id, None).result(timeout=60)
        assert first != second != os.getpid()
        future = workers.submit(time.sleep, 600)
        began = time.monotonic()
        assert workers.end(future)  # other tasks are lost with it
        assert time.monotonic() - began < 60
    finally:
        workers.close()
