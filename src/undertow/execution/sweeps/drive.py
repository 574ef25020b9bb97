"""The driver of a sweep: submit its blocks to workers, write their results, and continue after failures.

Only the driver writes, under a lock of the folder. However it ends, the blocks whose flags are written are finished,
and the next driver runs the others.
"""

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from undertow.execution import store
from undertow.execution.error_text import error_message
from undertow.execution.pool import Outcome, TimeLimitError, WorkerDiedError, run_tasks
from undertow.execution.sweeps.blocks import Tiling
from undertow.execution.sweeps.plan import Block, Job, dimensions_of, make_plan, task_of
from undertow.execution.sweeps.records import BlockResult, Plan
from undertow.execution.sweeps.results import (
    DONE,
    FAILED,
    PLAN,
    SPEC,
    Output,
    Results,
    read_plan,
    write_plan,
    write_spec,
)
from undertow.execution.sweeps.spec import SpecError, check_outputs
from undertow.execution.sweeps.units import in_bytes
from undertow.execution.workers import Workers, WorkerVersionError

__all__ = ["State", "run"]


@dataclass
class State:
    """The progress of a sweep."""

    runs: int
    reused: int = 0
    done: int = 0
    failed: int = 0
    blocks: int = 0
    blocks_done: int = 0
    not_finite: int = 0
    """Finished runs with a NaN or an infinity among their outputs, which have often diverged."""
    block_seconds: float = 0.0
    """The seconds of the last block without compilation, from a worker that had run one before."""
    work_seconds: float = 0.0
    """The seconds of all blocks together, compilation included, in all workers."""
    slots: int = 1
    start: float = field(default_factory=time.monotonic)
    compiled: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The number of compilations and their seconds, by worker."""
    errors: dict[str, int] = field(default_factory=dict)
    """The number of failed runs by error message."""

    @property
    def compilations(self) -> tuple[int, float]:
        """The programs that all workers compiled or read from the cache, and the seconds that this took."""
        return sum(n for n, _ in self.compiled.values()), sum((s for _, s in self.compiled.values()), 0.0)

    @property
    def rate(self) -> float:
        """Runs per second since this driver started."""
        return (self.done + self.failed - self.reused) / max(1e-9, time.monotonic() - self.start)

    @property
    def seconds_left(self) -> float:
        """The expected seconds until all runs are done, at the rate so far."""
        left = self.runs - self.done - self.failed
        return left / self.rate if self.rate > 0 else math.inf


def run(
    job: Job,
    make_workers: Callable[[], Workers],
    *,
    report_plan: Callable[[str], object] = lambda sentence: None,
    report: Callable[[State, Results | None], object] = lambda state, results: None,
) -> State:
    """Run the blocks that are not finished and return the final state; results and errors are in the folder."""
    with _kept_with_plan(job.folder) as folder, locked(folder) as check_folder:
        store.remove_partial(folder)
        results = Results.opened(folder, write_spec(folder, job.spec, job.digest))
        if results is not None:
            results.repair()
            write_plan(folder, results.plan)
            state, todo = _unfinished(job, results)
            if not todo:
                report(state, results)
                return state
        workers = make_workers()
        try:
            plan = results.plan if results is not None else read_plan(folder) or make_plan(job, workers, report_plan)
            check_folder()
            write_plan(folder, plan)
            driver = _Driver(job, plan, results, workers, report, check_folder)
            return driver.run()
        finally:
            workers.close()


@contextmanager
def _kept_with_plan(folder: Path) -> Generator[Path]:
    """Create the folder; remove it again if an error ends the run before the plan, as a wrong name does."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    store.writable_folder(folder)
    try:
        yield folder
    except (store.FolderLockedError, store.FolderRemovedError):  # the folder may be that of another driver
        raise
    except BaseException:
        if new and not (folder / PLAN).exists():
            with contextlib.suppress(OSError):  # not empty, or removed by somebody else
                for name in (SPEC, ".lock"):
                    (folder / name).unlink(missing_ok=True)
                for path in new:
                    path.rmdir()
        raise


@contextmanager
def locked(folder: Path, patience: float | int = 1) -> Generator[Callable[[], None]]:
    """Lock a folder, retrying for `patience` seconds: `status` locks it for an instant, a driver while it runs.

    Yields the function of `store.folder_lock`, which raises an error if the folder was removed.
    """
    with ExitStack() as lock:
        deadline = time.monotonic() + patience
        while True:
            try:
                check_folder = lock.enter_context(store.folder_lock(folder))
                break
            except store.StoreError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
        yield check_folder


def _unfinished(job: Job, results: Results) -> tuple[State, list[Block]]:
    """Return the state that earlier drivers left, and the unfinished blocks; failed runs run again."""
    flags = results.flags()
    tiling = results.tiling
    whole = {block for block in tiling.blocks() if (flags[tiling.region(block)] == DONE).all()}
    done = sum(int(np.prod([part.stop - part.start for part in tiling.region(block)])) for block in whole)
    state = State(job.spec.runs, reused=done, done=done, blocks=tiling.count, blocks_done=len(whole))
    return state, [block for block in tiling.blocks() if block not in whole]


class _Driver:
    """One run of the driver."""

    def __init__(
        self, job: Job, plan: Plan, results: Results | None, workers: Workers,
        report: Callable[[State, Results | None], object], check_folder: Callable[[], None],
    ):  # fmt: skip
        self.job, self.plan, self.results, self.workers, self.report = job, plan, results, workers, report
        self.check_folder = check_folder
        self.tiling = Tiling(job.spec.shape, plan.tile)
        if results is None:
            self.state, todo = State(job.spec.runs, blocks=self.tiling.count), self.tiling.blocks()
        else:
            self.state, todo = _unfinished(job, results)
        self.todo = todo
        self.unwritten: list[Block] = []  # blocks that failed before the shapes of the outputs were known

    def run(self) -> State:
        outcomes = run_tasks(
            self.workers, self.job.work, self.todo, slots=self._slots, time_limit=self.job.spec.time_limit,
            payload=lambda block: task_of(self.job, self.plan, self.tiling, block, self.workers),
        )  # fmt: skip
        for outcome in outcomes:
            self._store(outcome)
            if self.state.errors:
                self._write_failures()
        self._write_failures()
        return self.state

    def _slots(self) -> int:
        self.state.slots = self.workers.slots_on(self.plan.platform)
        return self.state.slots

    def _store(self, outcome: Outcome[Block, BlockResult]) -> None:
        self.check_folder()
        if isinstance(outcome.error, SpecError | WorkerVersionError):
            raise outcome.error
        if isinstance(outcome.error, WorkerDiedError | TimeLimitError):
            self._fail(outcome.task, str(outcome.error))
        elif outcome.error is not None:
            self._fail(outcome.task, error_message(outcome.error))
        else:
            assert outcome.result is not None
            self._write(outcome.task, outcome.result)

    def _write(self, block: Block, result: BlockResult) -> None:
        """Write the outputs of a block and count its runs."""
        values, state = result.values, self.state
        count = int(np.prod([part.stop - part.start for part in self.tiling.region(block)]))
        if self.results is None and values:
            self._create(values)
        if self.results is not None and values:
            mismatch = self._shape_mismatch(values)
            if mismatch:
                self._fail(block, mismatch)
                return
        if values:
            assert self.results is not None
            flags = np.full(count, DONE, np.int8)
            flags[list(result.errors)] = FAILED
            self.results.write(block, values, flags)
            state.done += int((flags == DONE).sum())
            state.failed += int((flags == FAILED).sum())
        else:
            flags = self._write_failed(block)
        for index, message in result.errors.items():
            if flags[index] == FAILED:
                state.errors[message] = state.errors.get(message, 0) + 1
        finite = np.ones(count, bool)
        for value in values.values():
            finite &= np.isfinite(value.reshape(count, -1)).all(axis=1)
        state.not_finite += int((~finite & (flags == DONE)).sum())
        if result.worker in state.compiled:  # the first block of a worker also traces
            state.block_seconds = result.run_seconds
        state.work_seconds += result.seconds
        state.compiled[result.worker] = (result.compilations, result.compile_seconds)
        self._count()

    def _fail(self, block: Block, message: str) -> None:
        failed = int((self._write_failed(block) == FAILED).sum())
        self.state.errors[message] = self.state.errors.get(message, 0) + failed
        self._count()

    def _count(self) -> None:
        self.state.blocks_done += 1
        self.report(self.state, self.results)

    def _write_failed(self, block: Block) -> np.ndarray:
        """Mark a block without outputs as failed, except for runs that an earlier driver finished; return its flags."""
        if self.results is None:
            self.unwritten.append(block)
            flags = np.full([part.stop - part.start for part in self.tiling.region(block)], FAILED, np.int8)
        else:
            flags = self.results.fail(block)
        reused = int((flags == DONE).sum())
        self.state.failed += flags.size - reused
        self.state.done += reused
        self.state.reused += reused
        return flags.ravel()

    def _create(self, values: dict[str, np.ndarray]) -> None:
        outputs = {}
        for name, value in values.items():
            shape = value.shape[1:]
            dimensions = dimensions_of(name, len(shape), self.plan.dimensions)
            outputs[name] = Output(shape, value.dtype.str, dimensions)
        check_outputs(self.job.spec, {name: output.dimensions for name, output in outputs.items()})
        each = sum(output.bytes for output in outputs.values()) + 1
        needed, free = each * self.job.spec.runs, shutil.disk_usage(self.job.folder).free
        if needed > free:
            raise store.StoreError(
                f"{self.job.folder}: the results need {in_bytes(needed)}, the disk has {in_bytes(free)} free."
            )
        self.results = Results.created(self.job.folder, self.job.spec, self.plan, outputs)
        for block in self.unwritten:
            self.results.fail(block)

    def _shape_mismatch(self, values: dict[str, np.ndarray]) -> str:
        """Return a message if the outputs have other shapes than those of other points, else an empty string."""
        assert self.results is not None
        shapes = {name: value.shape[1:] for name, value in values.items()}
        usual = {name: output.shape for name, output in self.results.outputs.items()}
        return "" if shapes == usual else f"its outputs have shapes {shapes}; those of other points have {usual}"

    def _write_failures(self) -> None:
        content = json.dumps({"failures": self.state.errors}, indent=1)
        path = self.job.folder / "failures.json"
        if self.state.errors or path.is_file():
            store.write_bytes(path, content.encode())
