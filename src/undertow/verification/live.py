"""What a person sees while claims run: verdicts as they come, and what is running now."""

import sys
import time
from typing import Any

from undertow.verification.report import number

__all__ = ["Live"]

STYLES = {"holds": "green", "corrected": "blue", "fails": "red", "error": "red", "inconclusive": "yellow"}


class Live:
    """A line a verdict; on a terminal also a bar with the claims that are running and the time that has passed."""

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
        """A claim begins."""
        self.running[claim_id] = time.monotonic()
        self._describe()

    def result(self, result: dict[str, Any], reused: bool) -> None:
        """A claim is judged."""
        self.running.pop(result["claim"], None)
        verdict = result["verdict"]
        style = STYLES[verdict]
        surprise = "" if verdict == result["expected"] else f"  expected: {result['expected']}"
        if result["seeds_needed"]:
            surprise += f"  ({result['seeds_needed']} seeds would decide)"
        value = f"{result['what']}: {number(result['measured'], result['uncertainty'])}"
        took = "kept" if reused else f"{result['compile_seconds']:.1f} s + {result['run_seconds']:.1f} s"
        detail = result["note"] if verdict == "error" else value
        self.bar.console.print(f"[{style}]{verdict:<12}[/] {result['claim']:<28} {took:>15}  ", end="")
        self.bar.console.print(detail + surprise, markup=False)
        self.bar.advance(self.task)
        self._describe()

    def _describe(self) -> None:
        self.bar.update(self.task, description=", ".join(self.running))
