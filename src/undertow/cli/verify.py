"""`undertow verify`: run claims, judge them, write the report."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from undertow.cli._status import MISTAKE, SUCCESS, SURPRISE, complain

if TYPE_CHECKING:
    from undertow.execution.workers import Workers
    from undertow.verification.result import ClaimResult, Task

__all__ = ["Verify", "run_and_report", "status_of", "verify"]

Names = tyro.conf.Positional[tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Verify:
    """Run claims, those of the papers or your own, and judge each: live verdicts, report.html, results.json.

    Exits with 0 only when every verdict is the expected one. Finished claims are kept: after Ctrl-C, or when called
    again, only claims that are missing or whose code or parameters changed are run.
    """

    claims: Annotated[
        Names, tyro.conf.arg(metavar="[CLAIM|PACK|FILE.py|FILE.py:NAME|FOLDER ...]", help_behavior_hint="")
    ] = ()
    """Names of claims or packs, which `undertow list` shows, or your own files; all installed claims by default."""
    paper: Annotated[str | None, tyro.conf.arg(metavar="PAPER")] = None
    """Only the claims of one paper, such as zero_loss."""
    scale: Literal["smoke", "default", "full"] = "default"
    """How much to compute: smoke takes minutes, default tens of minutes, full needs a GPU."""
    jobs: int = min(2, os.cpu_count() or 1)
    """How many claims run at the same time, each in its own process."""
    out: Path = Path("undertow-report")
    """The folder for the report, the results and the data."""
    seed: int = 0
    """Another number repeats everything with other random draws."""
    fresh: bool = False
    """Run all claims again, including finished ones."""
    plant: bool = False
    """Plant the alternative of each claim, under which it must fail. Results are in the folder `planted` of --out."""


def verify(command: Verify) -> int:
    """Run the chosen claims and write the report."""
    if command.jobs < 1:
        return complain(f"--jobs {command.jobs}: give at least 1.")
    if not 0 <= command.seed < 2**63:
        return complain(f"--seed {command.seed}: give a whole number from 0 to 2^63 - 1.")
    nothing_finished = command.fresh or not (command.out / "claims").is_dir()
    if command.jobs == 1 or command.claims or not nothing_finished:
        return _verify(command)

    from undertow.execution.registry import import_claims
    from undertow.execution.workers import Processes

    workers = Processes(command.jobs)
    try:
        workers.prepare(import_claims)  # while this process imports them too
        return _verify(command, workers)
    finally:
        workers.close()


def _verify(command: Verify, workers: "Workers | None" = None) -> int:
    from undertow.execution import store
    from undertow.execution.registry import UserFileError
    from undertow.verification.runner import task_of
    from undertow.verification.select import UnknownClaimError, select

    try:
        selection = select(command.claims, command.paper)
    except (UnknownClaimError, UserFileError) as error:
        return complain(str(error))
    for problem in selection.problems:
        complain(problem)
    if not selection.chosen:
        named = "the claims named" if command.claims else "the claims"
        return MISTAKE if selection.problems else complain(f"none of {named} belongs to the paper {command.paper}.")
    tasks = [
        task_of(one.claim.id, command.scale, one.claim.parameters(command.scale), command.seed, one.source,
                planted=command.plant)
        for one in selection.chosen
    ]  # fmt: skip
    out = store.writable_folder(command.out / "planted" if command.plant else command.out)
    with store.folder_lock(out) as check_folder:
        results = run_and_report(tasks, out, command.jobs, command.fresh, check_folder, workers)
    return MISTAKE if selection.problems else status_of(results)


def status_of(results: "list[ClaimResult]") -> int:
    """Return the exit status of these results."""
    if any(result.verdict == "error" and result.task.source for result in results):
        return MISTAKE  # a claim of the user's own cannot be run or judged
    return SUCCESS if all(result.as_expected for result in results) else SURPRISE


def run_and_report(
    tasks: "list[Task]", out: Path, jobs: int, fresh: bool, check_folder: Callable[[], None],
    workers: "Workers | None" = None,
) -> "list[ClaimResult]":  # fmt: skip
    """Run tasks with live progress, write results.json and report.html, and print the number of expected verdicts.

    `check_folder` raises an error if the folder was removed while the tasks ran.
    `workers` are processes that run already; by default they are started where they are needed.
    """
    from undertow.execution import store
    from undertow.verification.live import Live
    from undertow.verification.report import build_report
    from undertow.verification.result import ClaimResult, write_results
    from undertow.verification.runner import make_workers, run_claims

    for folder in (out, out / "claims"):
        store.remove_partial(folder)
    finished: list[ClaimResult] = []
    with Live(len(tasks)) as live:

        def report(result: ClaimResult, reused: bool) -> None:
            check_folder()
            finished.append(result)
            live.result(result, reused)

        try:
            results = run_claims(
                tasks, out, jobs, fresh=fresh, report=report, started=live.started,
                warn=lambda message: print(f"undertow: {message}", file=sys.stderr),
                workers=make_workers if workers is None else lambda jobs: workers,
            )  # fmt: skip
        except KeyboardInterrupt:
            if finished:
                write_results(out, finished)
                build_report(out, finished)
            raise
    write_results(out, results)
    page = build_report(out, results)
    as_expected = sum(result.as_expected for result in results)
    print(f"\n{as_expected} of {len(results)} verdicts as expected. Report: {page}")
    return results
