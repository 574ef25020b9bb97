"""Progress reports: a callback, or a bar on the terminal after two seconds."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

__all__ = ["Progress", "StageProgress"]

PATIENCE_SECONDS = 2.0


class Progress:
    """Report (done, total) to a callback, or with a bar on the terminal once `PATIENCE_SECONDS` have passed.

    `report=None` shows the bar where stderr is a terminal, `report=False` shows nothing.
    """

    def __init__(self, what: str, total: int | None, report: Callable[[int, int], object] | bool | None):
        self.what = what
        self.total = total
        self.callback = report if callable(report) else None
        self.visible = report is True or (report is None and sys.stderr.isatty())
        self.began = time.monotonic()
        self.bar: Bar | None = None
        self.task: TaskID | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int) -> None:
        """Report that `done` of the total is finished."""
        if self.callback is not None:
            self.callback(done, self.total or 0)
        elif self.visible and self.bar is None and time.monotonic() - self.began > PATIENCE_SECONDS:
            self._show()
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done)

    def restart(self, what: str, total: int | None) -> None:
        """Begin to count other work, from zero. A bar that is shown stays, with another description."""
        self.what, self.total = what, total
        if self.bar is not None and self.task is not None:
            self.bar.reset(self.task, total=total, description=what)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self.bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task(self.what, total=self.total)


class StageProgress:
    """Report the progress of several stages, each with its own total, to a callback or with one bar.

    `report` is as in `Progress`; a callback receives (stage, done, total), with None for a total that is not known.
    The time before the bar appears is counted over all stages.
    """

    def __init__(self, what: str, stages: int, report: Callable[[str, int, int | None], object] | bool | None):
        self.what, self.stages = what, stages
        self.callback = report if callable(report) else None
        self.progress = Progress(what, None, None if report is None else report is True)
        self.stage, self.number, self.done = what, 0, 0

    def __enter__(self) -> "StageProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.__exit__()

    def start(self, stage: str, total: int | None) -> None:
        """Start the next stage."""
        self.stage, self.number, self.done = stage, self.number + 1, 0
        self.progress.restart(f"{self.what}: {stage} ({self.number}/{self.stages})", total)

    def advance(self) -> None:
        """Report one more pass of the stage."""
        self.done += 1
        if self.callback is not None:
            self.callback(self.stage, self.done, self.progress.total)
        self.progress.update(self.done)
