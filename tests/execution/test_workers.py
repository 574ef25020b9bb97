"""Workers run tasks, restart their processes, and say how many tasks to run at once."""

import concurrent.futures
import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from types import SimpleNamespace

import distributed
import pytest
from distributed.comm import CommClosedError

from tests.execution.light import pool
from undertow.execution.provenance import fingerprint
from undertow.execution.workers import (
    MALLOC_SETTINGS,
    Cluster,
    InProcess,
    Processes,
    WorkersUnreachableError,
    WorkerVersionError,
    _with_same_code,
    processes,
)


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


def record_process(folder):
    time.sleep(0.2)  # long enough that no process runs it twice before the other has started
    (folder / str(os.getpid())).touch()


def test_preparation_runs_in_every_process(tmp_path):
    workers = Processes(2, pool)
    try:
        workers.prepare(partial(record_process, tmp_path))
        concurrent.futures.wait(list(workers._submitted), timeout=60)
        assert len(list(tmp_path.iterdir())) in (1, 2)  # a slow start may give both calls to one process
        assert str(os.getpid()) not in {path.name for path in tmp_path.iterdir()}
        assert workers.submit(abs, -3).result(timeout=60) == 3
    finally:
        workers.close()


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


def test_processes_keep_freed_memory_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    with processes(1) as pool:
        there = [pool.submit(os.getenv, name).result() for name in MALLOC_SETTINGS]
    assert there == [str(2**28), str(2**29), "4096"]


def test_processes_have_one_thread_unless_the_environment_says_otherwise(monkeypatch):
    for given, expected in ((None, "1"), ("3", "3")):
        monkeypatch.setenv("NPROC", given or "")
        if given is None:
            monkeypatch.delenv("NPROC")
        with processes(1) as pool:
            assert pool.submit(os.getenv, "NPROC").result() == expected


class Stuck(concurrent.futures.Executor):
    """A pool that waits for a process that does not end, as one does that started it while another one died."""

    def __init__(self):
        self.child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        self.child.start()
        self._processes = {self.child.pid: self.child}

    def shutdown(self, wait=True, *, cancel_futures=False):
        if wait:
            self.child.join(60)


def test_a_restart_waits_for_no_process():
    """A sweep did not end when a worker died while the pool was starting the next one."""
    pools = []
    workers = Processes(1, lambda jobs: pools.append(Stuck()) or pools[-1])
    try:
        workers.restart()
        assert pools[0].child.exitcode == -signal.SIGKILL
    finally:
        for stuck in pools:
            stuck.child.kill()
            stuck.child.join()


@pytest.mark.parametrize("index", [0, 1])
def test_an_idle_process_that_is_killed_delays_nobody(index, monkeypatch):
    """One of the two has the lock on the queue of tasks, so that the other one never gets the request to end."""
    monkeypatch.setattr("undertow.execution.workers.IDLE_SECONDS", 2)
    workers = Processes(2, pool)
    concurrent.futures.wait([workers.submit(time.sleep, 0.3) for _ in range(2)], timeout=60)
    time.sleep(0.3)  # both wait for the next task
    children = list(workers.pool._processes.values())
    os.kill(children[index].pid, signal.SIGKILL)
    closing = threading.Thread(target=workers.close, daemon=True)
    closing.start()
    closing.join(60)
    try:
        assert not closing.is_alive()
    finally:
        for child in children:
            child.kill()


def test_a_worker_with_other_code_runs_nothing():
    code = fingerprint("the driver")
    assert _with_same_code(fingerprint(), abs, -2) == 2
    with pytest.raises(WorkerVersionError, match=r"has another version of undertow, or of a package"):
        _with_same_code(code, abs, -2)


def test_a_worker_runs_the_finalizers_of_its_locks(tmp_path):
    """Python 3.13 runs them at exit; a worker that ends before them leaks semaphores, and Python warns."""
    note = tmp_path / "finalized"
    code = f"from multiprocessing.util import Finalize; Finalize(None, open, ({str(note)!r}, 'w'), exitpriority=0)"
    with processes(1) as executor:
        executor.submit(exec, code).result()
    assert note.exists()


def test_closing_a_cluster_that_is_gone_raises_nothing():
    """A client of Dask closes itself when it cannot reconnect; cancelling tasks then raises, and hid the sentence."""
    closed = []

    def gone(**options):
        closed.append(options)
        raise RuntimeError("Client is closed. Can't send cancel-keys message.")

    cluster = object.__new__(Cluster)
    cluster.pool, cluster.client = SimpleNamespace(shutdown=gone), SimpleNamespace(close=gone)
    cluster.close()
    assert closed == [{"wait": False}, {"timeout": 5}]


@pytest.mark.parametrize("lost", [CommClosedError("in <TCP>: Connection reset by peer"), OSError("broken pipe")])
def test_a_scheduler_that_dies_while_a_driver_connects_is_one_sentence(lost, monkeypatch):
    def wait_for_workers(*args, **options):
        raise lost

    closed = []
    client = SimpleNamespace(wait_for_workers=wait_for_workers, close=lambda **options: closed.append(options))
    monkeypatch.setattr(distributed, "Client", lambda *args, **options: client)
    with pytest.raises(WorkersUnreachableError, match="the Dask scheduler cannot be reached"):
        Cluster("tcp://127.0.0.1:1")
    assert closed
