"""The driver: plans a sweep, keeps an engine busy with its blocks, writes what comes back, and survives what does not.

Only the driver writes, under a lock of the folder. Whatever ends it, the blocks whose flags are written are finished,
and the next driver runs the others.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from undertow.execution import store
from undertow.execution.pool import Outcome, TimeLimitError, WorkerDiedError, run_tasks
from undertow.execution.sweeps import experiments
from undertow.execution.sweeps.blocks import Tiling, width_for
from undertow.execution.sweeps.results import DONE, FAILED, Output, Results, read_plan, write_plan, write_spec
from undertow.execution.sweeps.spec import Spec, SpecError, check_outputs
from undertow.execution.workers import Processes, Workers, WorkersGoneError

__all__ = ["Job", "State", "make_plan", "run"]

Block = tuple[int, ...]


@dataclass
class Job:
    """What to run and where it is kept. `describe` and `work` are what the workers are asked to do."""

    spec: Spec
    experiment: str | Callable
    digest: str
    folder: Path
    describe: Callable[[dict[str, Any]], dict[str, Any]] = experiments.describe
    work: Callable[[dict[str, Any]], dict[str, Any]] = experiments.work


@dataclass
class State:
    """How far a sweep is."""

    runs: int
    reused: int = 0
    done: int = 0
    failed: int = 0
    blocks: int = 0
    blocks_done: int = 0
    not_finite: int = 0
    """Runs with a NaN or an infinity among their outputs: finished, and often diverged."""
    block_seconds: float = 0.0
    """Of the last block, without compilation, of a worker that had one before."""
    work_seconds: float = 0.0
    """Of all blocks together, compilation included, in all workers."""
    slots: int = 1
    began: float = field(default_factory=time.monotonic)
    compiled: dict[str, tuple[int, float]] = field(default_factory=dict)
    sentences: dict[str, int] = field(default_factory=dict)
    """What went wrong, and in how many runs."""

    @property
    def compilations(self) -> tuple[int, float]:
        """Programs compiled, or read from the cache, by all workers, and the seconds it took them."""
        return sum(n for n, _ in self.compiled.values()), sum((s for _, s in self.compiled.values()), 0.0)

    @property
    def rate(self) -> float:
        """Runs a second since this driver began."""
        return (self.done + self.failed - self.reused) / max(1e-9, time.monotonic() - self.began)

    @property
    def seconds_left(self) -> float:
        """At the rate so far."""
        left = self.runs - self.done - self.failed
        return left / self.rate if self.rate > 0 else math.inf


def run(
    job: Job,
    engine: Callable[[], Workers],
    *,
    tell: Callable[[str], Any] = lambda sentence: None,
    report: Callable[[State, Results | None], Any] = lambda state, results: None,
) -> State:
    """Runs what is not finished and returns how it went; results and sentences are in the folder."""
    folder = store.writable_folder(job.folder)
    with held(folder):
        plan = read_plan(folder)
        results = None if plan is None else Results.opened(folder, Tiling(job.spec.shape, tuple(plan["tile"])))
        if not (folder / "sweep.json").is_file():
            write_spec(folder, job.spec, job.digest)
        if plan is not None and results is not None:
            results.tidy()
            state, todo = _left(job, results)
            if not todo:
                report(state, results)
                return state
        workers = engine()
        try:
            plan = plan or make_plan(job, workers, tell)
            if not (folder / "plan.json").is_file():
                write_plan(folder, plan)
            driver = _Driver(job, plan, results, workers, report)
            return driver.run()
        finally:
            workers.close()


@contextmanager
def held(folder: Path, patience: float | int = 1) -> Generator[None]:
    """The lock of a folder, tried for so many seconds: `status` holds it for an instant, a driver while it runs."""
    with ExitStack() as lock:
        deadline = time.monotonic() + patience
        while True:
            try:
                lock.enter_context(store.folder_lock(folder))
                break
            except store.StoreError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
        yield


def _left(job: Job, results: Results) -> tuple[State, list[Block]]:
    """What an earlier driver finished, and the blocks with something left; failures are tried again."""
    flags = results.flags()
    tiling = results.tiling
    whole = {block for block in tiling.blocks() if (flags[tiling.region(block)] == DONE).all()}
    done = sum(int(np.prod([part.stop - part.start for part in tiling.region(block)])) for block in whole)
    state = State(job.spec.runs, reused=done, done=done, blocks=tiling.count, blocks_done=len(whole))
    return state, [block for block in tiling.blocks() if block not in whole]


def make_plan(job: Job, workers: Workers, tell: Callable[[str], Any]) -> dict[str, Any]:
    """Asks a worker about the experiment, checks every value of every axis, and cuts the grid."""
    spec = job.spec
    request = {
        "experiment": job.experiment, "digest": job.digest, "scale": spec.scale, "seed": spec.seed, "own": workers.own,
        "first": spec.point((0,) * len(spec.axes)),
    }  # fmt: skip
    known = _describe(job, workers, request)
    kinds = known["kinds"]
    experiments.fitted(kinds, tuple(known["needed"]), request["first"])
    for axis in spec.axes:
        for name, values in axis.values.items():
            for value in values:
                experiments.fitted(kinds, (), {name: value})
    told = {name: tuple(dimensions) for name, dimensions in known["dimensions"].items()}
    ranks = known.get("ranks", {})
    check_outputs(spec, told | {name: dimensions_of(name, rank, told) for name, rank in ranks.items()})
    changing = {name for axis in spec.axes for name in axis.values}
    together = [not known["batched"] or all(kinds[name] == "float" for name in axis.values) for axis in spec.axes]
    width = width_for(
        spec.runs, batched=known["batched"], run_bytes=known["run_bytes"], memory=known["memory"],
        platform=known["platform"], slots=slots_on(workers, known["platform"]),
    )  # fmt: skip
    width = 1 if known["attributes"].get("claim") else width
    tiling = Tiling.of(spec.shape, (*together, True), width)
    plan = {
        "tile": list(tiling.tile),
        "batched": known["batched"],
        "dimensions": {name: list(d) for name, d in known["dimensions"].items()},
        "attributes": known["attributes"],
        "platform": known["platform"],
    }
    grid = " x ".join(str(n) for n in spec.shape[:-1])
    how = f"each one program of {tiling.width} runs" if known["batched"] else f"run one by one: {known['why']}"
    memory = f"; about {in_bytes(tiling.width * known['run_bytes'])} of memory a block" if known["batched"] else ""
    tell(
        f"{grid} points ({', '.join(sorted(changing))}) of {spec.seeds} seed{'s' if spec.seeds > 1 else ''}: "
        f"{spec.runs:,} runs in {tiling.count:,} block{'s' if tiling.count > 1 else ''}, {how}{memory}; "
        f"{slots_on(workers, known['platform'])} at a time {workers.words} ({known['device']})."
    )
    return plan


def dimensions_of(output: Any, rank: int, told: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Those that the experiment has told; else numbered ones."""
    return tuple(told.get(output, [f"{output}_{k}" for k in range(rank)]))


def slots_on(workers: Workers, platform: str) -> int:
    """Tasks at a time: processes here would share one accelerator and its memory; workers of a cluster do not."""
    return 1 if isinstance(workers, Processes) and platform != "cpu" else workers.slots


def _describe(job: Job, workers: Workers, request: dict[str, Any]) -> dict[str, Any]:
    """Ask a worker about the experiment."""
    (outcome,) = run_tasks(workers, job.describe, [request])
    if isinstance(outcome.error, WorkerDiedError):
        raise WorkersGoneError(f"{job.experiment}: looking at the experiment kills the worker ({outcome.error}).")
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


def in_bytes(count: float | int) -> str:
    """A size with a unit.

    >>> from undertow.execution.sweeps.drive import in_bytes
    >>> in_bytes(3 * 2**20)
    '3 MiB'
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def task_of(job: Job, plan: dict[str, Any], tiling: Tiling, block: Block, own: bool) -> dict[str, Any]:
    """What a worker needs for one block: a column of values for every parameter, and the seeds, a row a run."""
    spec, region = job.spec, tiling.region(block)
    sizes = [part.stop - part.start for part in region]
    rows = np.indices(sizes).reshape(len(sizes), -1)
    columns: dict[str, list[Any]] = {name: [value] * rows.shape[1] for name, value in spec.parameters.items()}
    for axis, part, row in zip(spec.axes, region[:-1], rows[:-1], strict=True):
        for name, values in axis.values.items():
            here = values[part]
            columns[name] = [here[i] for i in row]
    return {
        "experiment": job.experiment, "digest": job.digest, "scale": spec.scale, "root": spec.seed, "own": own,
        "columns": columns, "seeds": (rows[-1] + region[-1].start).tolist(), "width": tiling.width,
        "batched": plan["batched"], "block": list(block),
    }  # fmt: skip


class _Driver:
    """One run of the driver over an engine."""

    def __init__(
        self, job: Job, plan: dict[str, Any], results: Results | None, workers: Workers,
        report: Callable[[State, Results | None], Any],
    ):  # fmt: skip
        self.job, self.plan, self.results, self.workers, self.report = job, plan, results, workers, report
        self.tiling = Tiling(job.spec.shape, tuple(plan["tile"]))
        if results is None:
            self.state, todo = State(job.spec.runs, blocks=self.tiling.count), self.tiling.blocks()
        else:
            self.state, todo = _left(job, results)
        self.todo = todo
        self.unwritten: list[Block] = []  # blocks that failed before the shapes of the outputs were known

    def run(self) -> State:
        outcomes = run_tasks(
            self.workers, self.job.work, self.todo, slots=self._slots, time_limit=self.job.spec.time_limit,
            payload=lambda block: task_of(self.job, self.plan, self.tiling, block, self.workers.own),
        )  # fmt: skip
        for outcome in outcomes:
            self._store(outcome)
            if self.state.sentences:
                self._write_failures()
        self._write_failures()
        return self.state

    def _slots(self) -> int:
        self.state.slots = slots_on(self.workers, self.plan["platform"])
        return self.state.slots

    def _store(self, outcome: Outcome[Block]) -> None:
        if isinstance(outcome.error, SpecError):
            raise outcome.error
        if isinstance(outcome.error, WorkerDiedError | TimeLimitError):
            self._fail(outcome.task, str(outcome.error))
        elif outcome.error is not None:
            self._fail(outcome.task, experiments.sentence(outcome.error))
        else:
            self._keep(outcome.task, outcome.result)

    def _keep(self, block: Block, result: dict[str, Any]) -> None:
        values, errors = result["values"], result["errors"]
        count = int(np.prod([part.stop - part.start for part in self.tiling.region(block)]))
        if self.results is None and values:
            self._create(values)
        if self.results is not None and values:
            wrong = self._unlike(values)
            if wrong:
                self._fail(block, wrong)
                return
        state = self.state
        if values:
            assert self.results is not None
            flags = np.full(count, DONE, np.int8)
            flags[list(errors)] = FAILED
            self.results.write(block, values, flags)
            state.done += int((flags == DONE).sum())
            state.failed += int((flags == FAILED).sum())
        else:
            flags = self._write_failed(block)
        for index, sentence in errors.items():
            if flags[index] == FAILED:
                state.sentences[sentence] = state.sentences.get(sentence, 0) + 1
        finite = np.ones(count, bool)
        for value in values.values():
            finite &= np.isfinite(value.reshape(count, -1)).all(axis=1)
        state.not_finite += int((~finite & (flags == DONE)).sum())
        if result["worker"] in state.compiled:  # the first block of a worker also traces
            state.block_seconds = result["run_seconds"]
        state.work_seconds += result["seconds"]
        state.compiled[result["worker"]] = result["compiled"]
        self._count()

    def _fail(self, block: Block, sentence: str) -> None:
        failed = int((self._write_failed(block) == FAILED).sum())
        self.state.sentences[sentence] = self.state.sentences.get(sentence, 0) + failed
        self._count()

    def _count(self) -> None:
        self.state.blocks_done += 1
        self.report(self.state, self.results)

    def _write_failed(self, block: Block) -> np.ndarray:
        """A block that gave nothing: what an earlier driver finished of it stays. Returns its flags, one a run."""
        if self.results is None:
            self.unwritten.append(block)
            flags = np.full([part.stop - part.start for part in self.tiling.region(block)], FAILED, np.int8)
        else:
            flags = self.results.fail(block)
        kept = int((flags == DONE).sum())
        self.state.failed += flags.size - kept
        self.state.done += kept
        self.state.reused += kept
        return flags.ravel()

    def _create(self, values: dict[str, Any]) -> None:
        outputs = {}
        for name, value in values.items():
            shape = value.shape[1:]
            dimensions = dimensions_of(name, len(shape), self.plan["dimensions"])
            outputs[name] = Output(shape, value.dtype.str, dimensions)
        check_outputs(self.job.spec, {name: output.dimensions for name, output in outputs.items()})
        each = sum(output.bytes for output in outputs.values()) + 1
        needed, free = each * self.job.spec.runs, shutil.disk_usage(self.job.folder).free
        if needed > free:
            raise store.StoreError(
                f"{self.job.folder}: the results need {in_bytes(needed)}, the disk has {in_bytes(free)} free."
            )
        self.results = Results.created(self.job.folder, self.job.spec, self.tiling, outputs, self.plan["attributes"])
        for block in self.unwritten:
            self.results.fail(block)

    def _unlike(self, values: dict[str, Any]) -> str:
        assert self.results is not None
        shapes = {name: value.shape[1:] for name, value in values.items()}
        usual = {name: output.shape for name, output in self.results.outputs.items()}
        return "" if shapes == usual else f"its outputs have shapes {shapes}; those of other points have {usual}"

    def _write_failures(self) -> None:
        content = json.dumps({"failures": self.state.sentences}, indent=1)
        path = self.job.folder / "failures.json"
        if self.state.sentences or path.is_file():
            store.write_bytes(path, content.encode())
