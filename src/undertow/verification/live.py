"""Live progress of a verification on the terminal: verdicts as they come, and the claims that are running."""

import sys
import time

from undertow.verification.presentation import measured_text
from undertow.verification.result import ClaimResult

__all__ = ["Live"]

STYLES = {"holds": "green", "corrected": "blue", "fails": "red", "error": "red", "inconclusive": "yellow"}


class Live:
    """One line per verdict; on a terminal also a bar with the claims that are running and the elapsed time."""

    def __init__(self, total: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.running: dict[str, float] = {}
        columns = (
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> "Live":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def started(self, claim_id: str) -> None:
        """Show a claim as running."""
        self.running[claim_id] = time.monotonic()
        self._describe()

    def result(self, result: ClaimResult, reused: bool) -> None:
        """Print the verdict on a claim."""
        self.running.pop(result.claim, None)
        surprise = "" if result.as_expected else f"  expected: {result.expected}"
        if result.seeds_needed:
            surprise += f"  ({result.seeds_needed} seeds are needed to decide)"
        seconds = "kept" if reused else f"{result.compile_seconds:.1f} s + {result.run_seconds:.1f} s"
        head = result.headline
        if head is None:
            detail = result.note
        else:
            detail = f"{head.what}: {measured_text(head.criterion, head.measured, head.uncertainty)}"
        line = f"[{STYLES[result.verdict]}]{result.verdict:<12}[/] {result.claim:<28} {seconds:>15}  "
        self.bar.console.print(line, end="")
        self.bar.console.print(detail + surprise, markup=False)
        self.bar.advance(self.task)
        self._describe()

    def _describe(self) -> None:
        self.bar.update(self.task, description=", ".join(self.running))
