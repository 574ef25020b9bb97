"""Run claims in this process or in others, and reuse finished results.

Each claim has a folder under the output folder with its data, its figure and its `result.json`. A result with the
fingerprint (code, versions, parameters) of its task is not computed again, so that an interrupted verification
continues where it stopped. A claim that raises an error, or whose process dies, is a result too; the others still run.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from undertow.execution import store
from undertow.execution.pool import WorkerDiedError, run_tasks
from undertow.execution.provenance import Parameter, fingerprint
from undertow.execution.reading import DAMAGE, read_json
from undertow.execution.settings import configure
from undertow.execution.workers import InProcess, Processes, Workers
from undertow.verification import claims
from undertow.verification.claim import Scale
from undertow.verification.errata import expected
from undertow.verification.measure import error_result, has_accelerator, run_claim, store_result
from undertow.verification.result import ClaimResult, Task

__all__ = ["make_workers", "run_claims", "task_of"]

ACCELERATED_AT_ONCE = 4
"""Claims that run on an accelerator at the same time: enough to fill it, not so many that they wait for each other."""


def make_workers(jobs: int) -> Workers:
    """Return this process for one job, and spawned processes for more."""
    if jobs == 1:
        configure()
        return InProcess()
    return Processes(jobs)


def task_of(claim_id: str, scale: Scale, parameters: dict[str, Parameter], seed: int) -> Task:
    """Return the task of a claim, with the fingerprint of the result that it will make.

    The fingerprint covers the module of the claim, the code that runs it, and the modules that these import.
    """
    task = Task(claim_id, scale, parameters, seed)
    modules = [name for name in (claims[claim_id].module, run_claim.__module__) if name]
    facts = {name: value for name, value in asdict(task).items() if name != "fingerprint"}
    return replace(task, fingerprint=fingerprint(facts, modules=modules))


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
    waiting.sort(key=lambda task: not (task.claim in claims and claims[task.claim].long))
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
                yield store_result(out, error_result(outcome.task, str(outcome.error), 0.0))
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
    module = lambda task: claims[task.claim].module if task.claim in claims else task.claim
    accelerated = lambda task: task.claim in claims and claims[task.claim].accelerated
    if sum(map(accelerated, running)) >= ACCELERATED_AT_ONCE and has_accelerator():
        waiting = [task for task in waiting if not accelerated(task)]
    busy = {module(task) for task in running}
    return next((task for task in waiting if module(task) not in busy), waiting[0] if waiting else None)


def _finished(out: Path, task: Task, warn: Callable[[str], object]) -> ClaimResult | None:
    """Return the stored result of the same task, unless it is an error. A damaged one is computed again.

    The errata lists are not part of the fingerprint, so the expected verdict is looked up again.
    """
    folder = out / "claims" / task.claim
    if not (folder / "result.json").is_file():
        return None
    try:
        result = ClaimResult.from_json(read_json(folder / "result.json"))
        if result.verdict == "error":
            return None
        store.provenance_of(folder / "data.zarr")
    except store.NewerFormatError:
        raise
    except (*DAMAGE, store.StoreError) as error:
        warn(f"the result of {task.claim} is damaged and runs again ({error})")
        return None
    if result.task.fingerprint != task.fingerprint or not (folder / "figure.svg").is_file():
        return None
    return replace(result, expected=expected(task.claim))
