"""`undertow report`: build report.html again."""

import contextlib
import dataclasses
import sys
from pathlib import Path

import tyro

from undertow.cli._status import SUCCESS

__all__ = ["Report", "report"]


@dataclasses.dataclass(frozen=True)
class Report:
    """Build report.html again from the results in a folder."""

    folder: tyro.conf.Positional[Path]
    """A folder that `undertow verify` wrote."""


def report(command: Report) -> int:
    """Build the report and print its path."""
    from undertow.execution import store
    from undertow.verification.report import build_report
    from undertow.verification.result import read_results

    results = read_results(command.folder, warn=lambda message: print(f"undertow: {message}", file=sys.stderr))
    with contextlib.suppress(store.StoreError), store.folder_lock(command.folder):  # unless a verification runs
        store.remove_partial(command.folder)
    print(build_report(command.folder, results))
    return SUCCESS
