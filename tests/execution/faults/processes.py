"""Processes that start in milliseconds: forks of one that has imported everything and started no thread."""

import contextlib
import ctypes
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from undertow.execution.workers import end_with_parent

PRELOAD = ("tests.execution.faults.work", "tests.execution.faults.claims")
LIMIT = 120.0
"""The most seconds of a command before it counts as hanging: other programs may load the machine."""


def serve() -> None:
    """Start the process from which workers are forked; they do not import the program again."""
    program = sys.modules["__main__"]
    program.__spec__ = None
    vars(program).pop("__file__", None)
    multiprocessing.set_forkserver_preload(list(PRELOAD))
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    forkserver._forkserver.ensure_running = lambda: None  # forks of this process use the same one


def pool(jobs: int, start: Callable[..., object] = os.getpid, *arguments: object) -> Executor:
    """Return a pool like that of `undertow.execution.workers.processes`, of forked processes."""
    return ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("forkserver"),
        initializer=_start_worker,
        initargs=(start, arguments),
    )


def _start_worker(start: Callable[..., object], arguments: tuple) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    start(*arguments)


def drop_privileges() -> None:
    """Make this process, if it is root's, subject to the permissions of files as other users are."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


class Child:
    """A forked process that runs a function, with what it prints in a file."""

    def __init__(self, said: Path, function: Callable[..., object], *arguments: object):
        self.said = said
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, arguments)

    def _run(self, function: Callable[..., object], arguments: tuple) -> None:
        status = 70
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it
            handle = os.open(self.said, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            status = function(*arguments) or 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 71
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            with contextlib.suppress(BaseException):
                import traceback

                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
            os._exit(status)

    def alive(self) -> bool:
        """Return whether the process has not ended; it is not reaped."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def kill(self, which: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, which)

    def wait(self, seconds: float = LIMIT) -> int:
        """Return the exit status, negative for a signal; a process that hangs is killed and raises an error."""
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                self.kill(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"the command hangs: {self.said.read_text()[-300:]}")
            time.sleep(0.003)

    def text(self) -> str:
        return self.said.read_text() if self.said.exists() else ""


def sleep_while(child: Child, seconds: float) -> None:
    """Wait so long, or until the process has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and child.alive():
        time.sleep(0.002)


def choose_signal(rng: random.Random) -> int:
    return rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Dask:
    """A scheduler and two workers of one thread each, as forked processes."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.scheduler = Child(folder / "dask.log", _scheduler, self.address)
        self.workers = [self.worker() for _ in range(2)]

    def worker(self, other_version: bool = False) -> Child:
        return Child(self.folder / "dask.log", _dask_worker, self.address, str(self.folder), other_version)

    def mend(self) -> None:
        """Replace workers that have ended."""
        for index, worker in enumerate(self.workers):
            if not worker.alive():
                worker.wait()
                self.workers[index] = self.worker()

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill(signal.SIGKILL)
            process.wait()


def _scheduler(address: str) -> None:
    import asyncio

    from distributed import Scheduler

    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=int(address.rpartition(":")[2]), dashboard=False) as scheduler:
            await scheduler.finished()

    asyncio.run(run())


def _dask_worker(address: str, folder: str, other_version: bool) -> None:
    import asyncio

    from distributed import Worker

    if other_version:  # a package that computes has another version here
        from undertow.execution import provenance

        provenance._source.cache_clear()
        provenance._version = lambda package: "0.0.1"

    async def run() -> None:
        async with Worker(address, nthreads=1, host="127.0.0.1", local_directory=folder, dashboard=False) as worker:
            await worker.finished()

    asyncio.run(run())
