"""Run claims in this process or in others, and reuse finished results.

Each claim has a folder under the output folder with its data, its figure and its `result.json`, under one seal. A
result with the fingerprint (code, versions, parameters) of its task is not computed again, so that an interrupted
verification continues where it stopped. A claim that raises an error, or whose process dies, is a result too; the
others still run.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from undertow.execution import store
from undertow.execution.pool import WorkerDiedError, run_tasks
from undertow.execution.settings import configure
from undertow.execution.workers import InProcess, Processes, Workers
from undertow.verification.errata import errata_of, expected
from undertow.verification.measure import error_result, has_accelerator, run_claim
from undertow.verification.result import ClaimResult, Task, read_result, store_result
from undertow.verification.tasks import claim_of, task_of

__all__ = ["make_workers", "run_claims", "task_of"]

ACCELERATED_AT_ONCE = 4
"""Claims that run on an accelerator at the same time: enough to fill it, not so many that they wait for each other."""


def make_workers(jobs: int) -> Workers:
    """Return this process for one job, and spawned processes for more."""
    if jobs == 1:
        configure()
        return InProcess()
    return Processes(jobs)


def run_claims(
    tasks: Sequence[Task],
    out: Path,
    jobs: int,
    *,
    fresh: bool = False,
    report: Callable[[ClaimResult, bool], object] = lambda result, reused: None,
    started: Callable[[str], object] = lambda claim_id: None,
    warn: Callable[[str], object] = lambda message: None,
    workers: Callable[[int], Workers] = make_workers,
    work: Callable[[str, Task], ClaimResult] = run_claim,
) -> list[ClaimResult]:
    """Run the tasks and return their results in the order of the tasks.

    `report` is called with each result as it comes, and with whether it was reused. Ctrl-C and other errors leave the
    finished results on disk; the next call reuses them.
    """
    results: dict[str, ClaimResult] = {}
    waiting = []
    for task in tasks:
        stored = None if fresh else _finished(out, task, warn)
        if stored is None:
            waiting.append(task)
        else:
            results[task.claim] = stored
            report(stored, True)
    waiting.sort(key=lambda task: not claim_of(task).long)
    with closing(_computed(waiting, out, jobs, started, workers, work)) as computed:
        for result in computed:
            results[result.claim] = result
            report(result, False)
    return [results[task.claim] for task in tasks]


def _computed(
    tasks: Sequence[Task], out: Path, jobs: int, started: Callable[[str], object], workers: Callable[[int], Workers],
    work: Callable[[str, Task], ClaimResult],
) -> Generator[ClaimResult]:  # fmt: skip
    """Yield the result of each task as it comes; a task whose worker died repeatedly has the verdict `error`."""
    if not tasks:
        return
    pool = workers(min(jobs, len(tasks)))
    try:
        for outcome in run_tasks(
            pool, partial(work, str(out)), tasks, choose=_next, started=lambda task: started(task.claim)
        ):
            if isinstance(outcome.error, WorkerDiedError):
                yield store_result(out, error_result(outcome.task, str(outcome.error), 0.0), {})
            elif outcome.error is not None:
                raise outcome.error
            else:
                assert outcome.result is not None
                yield outcome.result
    finally:
        pool.close()


def _next(waiting: Sequence[Task], running: Sequence[Task]) -> Task | None:
    """Return the first task of a module none of whose claims is running, so that shared programs compile once.

    None if all waiting tasks are for an accelerator that is full.
    """
    module = lambda task: claim_of(task).module
    accelerated = lambda task: claim_of(task).accelerated
    if sum(map(accelerated, running)) >= ACCELERATED_AT_ONCE and has_accelerator():
        waiting = [task for task in waiting if not accelerated(task)]
    busy = {module(task) for task in running}
    return next((task for task in waiting if module(task) not in busy), waiting[0] if waiting else None)


def _finished(out: Path, task: Task, warn: Callable[[str], object]) -> ClaimResult | None:
    """Return the stored result of the same task, unless it is an error. A damaged one is computed again.

    The errata lists are not part of the fingerprint, so the expected verdict is looked up again.
    """
    try:
        result = read_result(out, task.claim)
    except store.NewerFormatError:
        raise
    except store.MissingError:
        return None
    except store.StoreError as error:
        warn(f"the result of {task.claim} is damaged and runs again ({error})")
        return None
    if result.verdict == "error" or result.task.fingerprint != task.fingerprint:
        return None
    expectation = expected(task.claim, task.source, planted=task.planted)
    return replace(result, expected=expectation, errata=errata_of(task.claim, task.source))
