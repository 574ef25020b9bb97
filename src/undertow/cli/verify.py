"""`undertow verify`: run claims, judge them, write the report."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from undertow.cli._status import SUCCESS, SURPRISE, complain

if TYPE_CHECKING:
    from undertow.execution.workers import Workers
    from undertow.verification.result import Task

__all__ = ["Verify", "run_and_report", "verify"]

Names = tyro.conf.Positional[tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Verify:
    """Run the claims of the papers and judge each: live verdicts, report.html, results.json.

    Exits with 0 only when every verdict is the expected one. Finished claims are kept: after Ctrl-C, or when called
    again, only claims that are missing or whose code or parameters changed are run.
    """

    claims: Annotated[Names, tyro.conf.arg(metavar="[CLAIM ...]")] = ()
    """The claims to run; all of them by default. `undertow list` shows the names."""
    paper: Literal["heterogeneity", "zero_loss", "noise_equilibrium", "optimisers"] | None = None
    """Only the claims of one paper."""
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
    from undertow.verification import claims
    from undertow.verification.runner import task_of

    for name in command.claims:
        if name not in claims:
            return complain(claims.unknown(name))
    chosen = [
        claim
        for claim in claims.values()
        if (not command.claims or claim.id in command.claims) and command.paper in (None, claim.paper)
    ]
    if not chosen:
        return complain(f"none of the claims named belongs to the paper {command.paper}.")
    tasks = [task_of(claim.id, command.scale, claim.parameters(command.scale), command.seed) for claim in chosen]
    out = store.writable_folder(command.out)
    with store.folder_lock(out):
        return run_and_report(tasks, out, command.jobs, command.fresh, workers)


def run_and_report(
    tasks: "list[Task]", out: Path, jobs: int, fresh: bool, workers: "Workers | None" = None
) -> int:  # fmt: skip
    """Run tasks with live progress, write results.json and report.html, and print the number of expected verdicts.

    `workers` are processes that run already; by default they are started where they are needed.
    """
    from undertow.verification.live import Live
    from undertow.verification.report import build_report
    from undertow.verification.result import ClaimResult, write_results
    from undertow.verification.runner import make_workers, run_claims

    finished: list[ClaimResult] = []
    with Live(len(tasks)) as live:

        def report(result: ClaimResult, reused: bool) -> None:
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
    return SUCCESS if as_expected == len(results) else SURPRISE
