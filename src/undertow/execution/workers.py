"""Workers: spawned processes on this machine, the workers of a Dask scheduler, or this process.

All of them submit tasks to a `concurrent.futures.Executor`, have a number of tasks to run at once, and can replace
workers that died or hang.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.util import Finalize

from undertow._frames import call_in_one_block
from undertow.execution.compiling import free_programs
from undertow.execution.provenance import fingerprint
from undertow.execution.settings import configure
from undertow.execution.store import StoreError

__all__ = [
    "Cluster",
    "InProcess",
    "Processes",
    "WorkerVersionError",
    "Workers",
    "WorkersUnreachableError",
    "end_with_parent",
    "processes",
]


IDLE_SECONDS = 10
"""The seconds that idle processes have to end by themselves."""
MALLOC_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    "MALLOC_TRIM_THRESHOLD_": str(2**29),
    "MALLOC_TOP_PAD_": str(2**25),
}
"""Limits in bytes above which glibc returns freed memory to the system.

By default it returns every large array at once, and a quarter of the kernel's time in a smoke run is for that.
"""


class WorkersUnreachableError(StoreError):
    """The workers cannot be reached any more. Finished results are stored."""


class WorkerVersionError(StoreError):
    """A worker runs other code than the driver. Finished results are stored."""


class Inline(Executor):
    """An executor that runs each task at once, in this process."""

    def submit(self, fn: Callable, /, *args: object, **kwargs: object) -> Future:
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def processes(jobs: int) -> Executor:
    """Return a pool of spawned processes (JAX has threads, so forking is unsafe).

    The processes share an accelerator, so none of them reserves its memory. They keep freed memory for the next
    arrays (`MALLOC_SETTINGS`).
    """
    if jobs > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    for name, value in MALLOC_SETTINGS.items():
        os.environ.setdefault(name, value)
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)


def _start_worker() -> None:
    """Ignore Ctrl-C, which the parent handles; end with the parent; use one thread, because several jobs run.

    With one thread of XLA per process, results also do not depend on the number of cores.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("NPROC", "1")  # read by XLA
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    configure()
    # after all other finalizers: Python 3.13 runs them at exit, and those of semaphores must run
    Finalize(None, _exit_at_once, exitpriority=-1000)


def _exit_at_once() -> None:
    """End this process. Results are stored, and JAX would need seconds to free its programs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def end_with_parent() -> None:
    """End this process when its parent ends, in whatever way; a pool alone would wait forever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()


class InProcess:
    """This process, for a function that exists in it alone. A task that runs cannot be ended."""

    in_process = True
    restartable = False
    slots = 1
    death_errors: tuple[type[BaseException], ...] = ()
    description = "in this process"

    def __init__(self) -> None:
        self.pool: Executor = Inline()

    def slots_on(self, platform: str) -> int:
        """Return the number of tasks to run at once on a platform."""
        return self.slots

    def submit(self, work: Callable, task: object) -> Future:
        """Run the task at once."""
        return self.pool.submit(_run, work, task)

    def check(self) -> None:
        """Do nothing: a task of this process ends before `submit` does."""

    def restart(self) -> None:
        """Do nothing: this process did not die."""

    def end(self, future: Future) -> bool:
        """Raise an error: a task in this process cannot be ended."""
        raise RuntimeError("a task in this process cannot be ended")

    def unreachable_error(self) -> WorkersUnreachableError:
        """Return the error for cancelled tasks."""
        return WorkersUnreachableError("the task was cancelled; run this again.")

    def close(self) -> None:
        """Do nothing."""


class Processes:
    """A number of processes on this machine."""

    in_process = False
    restartable = True
    death_errors: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def __init__(self, jobs: int, make: Callable[[int], Executor] = processes):
        self.slots, self.make = jobs, make
        self._submitted: weakref.WeakSet[Future] = weakref.WeakSet()
        self.pool = make(jobs)

    @property
    def description(self) -> str:
        """The workers, for messages."""
        return "in processes on this machine"

    def slots_on(self, platform: str) -> int:
        """Return the number of tasks to run at once on a platform: processes share one accelerator and its memory."""
        return self.slots if platform == "cpu" else 1

    def submit(self, work: Callable, task: object) -> Future:
        """Submit a task to the pool."""
        future = self.pool.submit(_run, work, task)
        self._submitted.add(future)
        return future

    def prepare(self, work: Callable[[], object]) -> None:
        """Start all processes now and call `work` in each, while this process does something else."""
        for _ in range(self.slots):
            self._submitted.add(self.pool.submit(work))

    def check(self) -> None:
        """Raise an error if the thread of the pool has ended, as it does without memory: no task would ever end."""
        thread = getattr(self.pool, "_executor_manager_thread", None)
        if thread is not None and not thread.is_alive() and not all(future.done() for future in self._submitted):
            raise WorkersUnreachableError(
                "the processes cannot be reached, because this process has no memory for another thread. Finished "
                "results are stored; free memory, and the same command continues from there."
            )

    def restart(self) -> None:
        """End all processes at once and start new ones."""
        self._end(0)
        self.pool = self.make(self.slots)

    def end(self, future: Future) -> bool:
        """End all processes, and with them the task of `future`; return whether other tasks are lost too."""
        self.restart()
        return True

    def unreachable_error(self) -> WorkersUnreachableError:
        """Return the error for cancelled tasks."""
        return WorkersUnreachableError("the workers cannot be reached; run this again.")

    def close(self) -> None:
        """End all processes, including those that are computing."""
        self._end(IDLE_SECONDS if all(future.done() for future in self._submitted) else 0)

    def _end(self, patience: float | int) -> None:
        """Let the processes end by themselves, which releases their locks; kill those that do not in so many seconds.

        A pool must not wait for its processes itself: it would wait indefinitely for one that it started while another
        one died, or for one whose lock on the queue of tasks an idle process had when it was killed.
        """
        children = list((getattr(self.pool, "_processes", None) or {}).values())
        self.pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + patience
        for child in children:
            child.join(max(0.0, deadline - time.monotonic()))
        for child in children:
            child.kill()
        for child in children:
            child.join()


def _run(work: Callable, task: object) -> object:
    """Run a task, in a process that may have run many others."""
    free_programs()
    return call_in_one_block(work, task)


def _with_same_code(code: str, work: Callable, task: object) -> object:
    """Run a task on a worker of a cluster, which must have the same versions as the driver."""
    if fingerprint() != code:
        raise WorkerVersionError(
            f"the Dask worker on {socket.gethostname()} (process {os.getpid()}) has another version of undertow, or of "
            "a package that it computes with; install the same versions on all workers and run this again."
        )
    return _run(work, task)


class Cluster:
    """The workers of a Dask scheduler. Dask itself runs the tasks of a worker that dies on another one."""

    in_process = False
    restartable = False

    def __init__(self, address: str, patience: float | int = 30):
        try:
            import distributed
        except ImportError:
            raise WorkersUnreachableError(
                f"{address}: a cluster needs Dask; install it with `pip install 'undertow[cluster]'`."
            ) from None
        self.address = address
        if not address.strip():
            raise WorkersUnreachableError("--on '': give the address of a Dask scheduler, such as tcp://10.0.0.1:8786.")
        _check_certificates(address)
        try:
            self.client = distributed.Client(address, timeout=patience, set_as_default=False)
        except (OSError, ValueError, TimeoutError, ImportError) as error:
            raise WorkersUnreachableError(f"{address}: no Dask scheduler answers ({type(error).__name__}).") from None
        try:
            self.client.wait_for_workers(1, timeout=patience)
        except OSError as error:  # those of Dask are such errors too
            with contextlib.suppress(Exception):
                self.client.close(timeout=5)
            if not isinstance(error, TimeoutError):
                raise self.unreachable_error() from error
            raise WorkersUnreachableError(
                f"{address}: the scheduler has no workers; start some and run this again."
            ) from None
        self.pool = self.client.get_executor(pure=False)
        self.death_errors: tuple[type[BaseException], ...] = (distributed.KilledWorker,)
        self._counted, self._slots = 0.0, 1
        self._keys: weakref.WeakKeyDictionary[Future, str] = weakref.WeakKeyDictionary()

    @property
    def description(self) -> str:
        """The workers, for messages."""
        return f"on the Dask workers of {self.address}"

    @property
    def slots(self) -> int:
        """The number of threads of all workers; workers that join later are counted within seconds."""
        now = time.monotonic()
        if now - self._counted > 5:
            try:
                self._slots, self._counted = max(1, sum(self.client.nthreads().values())), now
            except Exception as error:
                raise self.unreachable_error() from error
        return self._slots

    def slots_on(self, platform: str) -> int:
        """Return the number of tasks to run at once: the workers of a cluster do not share an accelerator."""
        return self.slots

    def submit(self, work: Callable, task: object) -> Future:
        """Submit a task to the scheduler."""
        key = f"undertow-{uuid.uuid4().hex}"
        try:
            future = self.pool.submit(_with_same_code, fingerprint(), work, task, key=key)
        except Exception as error:
            raise self.unreachable_error() from error
        self._keys[future] = key
        return future

    def unreachable_error(self) -> WorkersUnreachableError:
        """Return the error for a scheduler that cannot be reached."""
        return WorkersUnreachableError(
            f"{self.address}: the Dask scheduler cannot be reached. Finished runs are stored; start a scheduler and "
            "workers, and the same command continues from there."
        )

    def end(self, future: Future) -> bool:
        """Restart the worker that is computing `future`; Dask runs its other tasks again.

        A worker without a nanny cannot be restarted, and its thread stays busy.
        """
        key = self._keys.pop(future, None)
        try:
            busy = [worker for worker, keys in self.client.processing().items() if key in keys]
            future.cancel()
            self.client.restart_workers(busy, timeout=30, raise_for_error=False)
        except Exception as error:
            raise self.unreachable_error() from error
        return False

    def check(self) -> None:
        """Do nothing: Dask cancels the tasks of a scheduler that is gone."""

    def restart(self) -> None:
        """Do nothing: Dask replaces its workers itself."""

    def close(self) -> None:
        """Disconnect from the cluster and leave it running; errors of Dask if it is gone would hide the first one."""
        for disconnect in (partial(self.pool.shutdown, wait=False), partial(self.client.close, timeout=5)):
            with contextlib.suppress(Exception):
                disconnect()


def _check_certificates(address: str) -> None:
    """Raise for a tls:// address without certificates; a client of Dask would wait a minute when the process ends."""
    from distributed.security import Security

    if not address.startswith("tls://"):
        return
    try:
        context = Security().get_connection_args("client").get("ssl_context")
    except (OSError, ValueError):  # a file that is missing, or is no certificate
        context = None
    if context is None:
        raise WorkersUnreachableError(
            f"{address}: Dask has no certificates for this address; give them in the configuration of Dask, such as "
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE (docs/security.md shows all)."
        )


Workers = InProcess | Processes | Cluster
