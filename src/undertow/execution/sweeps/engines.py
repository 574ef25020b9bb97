"""Where blocks run: spawned processes here, the workers of a Dask scheduler, or this process.

Each engine is a `concurrent.futures.Executor` with the number of tasks to keep on it, and knows how to begin again
after a worker died or hangs.
"""

import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from undertow.execution.store import StoreError
from undertow.verification import runner

__all__ = ["Cluster", "EngineError", "Here", "InProcess"]


class EngineError(StoreError):
    """The engine is gone: what is finished is kept."""


class InProcess:
    """This process: for a function that exists in it alone. Nothing can be stopped half way."""

    own = True
    slots = 1
    lost: tuple[type[BaseException], ...] = ()
    words = "in this process"

    def __init__(self) -> None:
        self.pool: Executor = runner.Inline()

    def submit(self, work: Callable, task: Any) -> Future:
        """Runs at once."""
        return self.pool.submit(work, task)

    def close(self) -> None:
        """Nothing to close."""


class Here:
    """So many processes on this machine."""

    own = False
    lost: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def __init__(self, jobs: int, make: Callable[[int], Executor] = runner.processes):
        self.slots, self.make = jobs, make
        self.pool = make(jobs)

    @property
    def words(self) -> str:
        """For a person."""
        return "in processes here"

    def submit(self, work: Callable, task: Any) -> Future:
        """To a process that is free."""
        return self.pool.submit(work, task)

    def renew(self) -> None:
        """Ends all processes at once and begins with new ones."""
        self.close()
        self.pool = self.make(self.slots)

    def end(self, future: Future) -> bool:
        """Ends what computes `future`, and with it everything else here; says whether other tasks are lost too."""
        self.renew()
        return True

    def close(self) -> None:
        """Ends all processes, whatever they do."""
        children = list((getattr(self.pool, "_processes", None) or {}).values())
        self.pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.kill()
        for child in children:
            child.join()


class Cluster:
    """The workers of a Dask scheduler. Dask itself runs the tasks of a worker that dies on another one."""

    own = False

    def __init__(self, address: str, patience: float | int = 30):
        try:
            import distributed
        except ImportError:
            raise EngineError("--on needs Dask: pip install 'undertow[cluster]'.") from None
        self.address = address
        try:
            self.client = distributed.Client(address, timeout=patience, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise EngineError(f"{address}: no Dask scheduler answers ({type(error).__name__}).") from None
        try:
            self.client.wait_for_workers(1, timeout=patience)
        except TimeoutError:
            self.client.close()
            raise EngineError(f"{address}: the scheduler has no workers; start some and run this again.") from None
        self.pool = self.client.get_executor(pure=False)
        self.lost = (distributed.KilledWorker,)
        self._counted, self._slots = 0.0, 1
        self._keys: weakref.WeakKeyDictionary[Future, str] = weakref.WeakKeyDictionary()

    @property
    def words(self) -> str:
        """For a person."""
        return f"on the Dask workers of {self.address}"

    @property
    def slots(self) -> int:
        """Threads of all workers; those that join later are seen within seconds."""
        now = time.monotonic()
        if now - self._counted > 5:
            try:
                self._slots, self._counted = max(1, sum(self.client.nthreads().values())), now
            except Exception as error:
                raise self.gone() from error
        return self._slots

    def submit(self, work: Callable, task: Any) -> Future:
        """To the scheduler."""
        key = f"undertow-{uuid.uuid4().hex}"
        try:
            future = self.pool.submit(work, task, key=key)
        except Exception as error:
            raise self.gone() from error
        self._keys[future] = key
        return future

    def gone(self) -> EngineError:
        """The sentence for a scheduler that died."""
        return EngineError(
            f"{self.address}: the Dask scheduler is gone. What is finished is kept; start a scheduler and workers, "
            "and the same command goes on from there."
        )

    def end(self, future: Future) -> bool:
        """Restarts the worker that is computing `future`; Dask runs its other tasks again.

        A worker without a nanny cannot be restarted, and its thread stays busy.
        """
        key = self._keys.pop(future, None)
        try:
            busy = [worker for worker, keys in self.client.processing().items() if key in keys]
            future.cancel()
            self.client.restart_workers(busy, timeout=30, raise_for_error=False)
        except Exception as error:
            raise self.gone() from error
        return False

    def close(self) -> None:
        """Leaves the cluster as it is."""
        try:
            self.pool.shutdown(wait=False)
            self.client.close(timeout=5)
        except (CancelledError, OSError, TimeoutError):
            pass
