"""Live progress of a sweep on the terminal: the plan, a bar with the rate and the time left, and a summary."""

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undertow.execution import store
from undertow.execution.sweeps.drive import State
from undertow.execution.sweeps.spec import Spec
from undertow.execution.sweeps.units import in_words

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Live"]


class Live:
    """A bar on a terminal, a few lines elsewhere; and progress.json in the folder, for `undertow sweep status`."""

    def __init__(self, spec: Spec, folder: Path, quiet: bool):
        self.spec, self.folder, self.quiet = spec, folder, quiet
        self.bar: Progress | None = None
        self.estimated = False
        """Whether the expected time was printed."""
        self.last_write, self.last_line = 0.0, time.monotonic()

    def __enter__(self) -> "Live":
        if not self.quiet and sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
                transient=True,
            )  # fmt: skip
            self.task = self.bar.add_task("", total=self.spec.runs)
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def print(self, sentence: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        elif not self.quiet:
            print(sentence, flush=True)

    def update(self, state: State) -> None:
        """Show the progress after a block."""
        now = time.monotonic()
        left = state.seconds_left
        if not self.estimated and state.block_seconds:
            self.estimated = True
            blocks = -(-(state.blocks - state.blocks_done) // max(1, state.slots))
            self.print(
                f"A block takes {in_words(state.block_seconds)}: about {in_words(blocks * state.block_seconds)}."
            )
        text = f"{state.rate:,.3g} runs/s"
        if math.isfinite(left):
            text += f", {in_words(left)} left"
        if state.failed:
            text += f", {state.failed} failed"
        if self.bar is not None:
            self.bar.update(self.task, completed=state.done + state.failed, description=text)
        elif now - self.last_line > 30:
            self.last_line = now
            self.print(f"{state.done + state.failed:,} of {state.runs:,} runs, {text}")
        if now - self.last_write > 1:
            self.last_write = now
            facts = {"done": state.done, "rate": state.rate, "left": min(left, 1e9), "at": time.time()}
            store.write_bytes(self.folder / "progress.json", json.dumps(facts).encode())

    def end(self, state: State) -> None:
        """Print the summary."""
        if self.quiet:
            return
        new = state.done + state.failed - state.reused
        reused = f"{state.reused:,} of {state.runs:,} runs were stored already; " if state.reused else ""
        programs, seconds = state.compilations
        compiled = f"; {programs} compilations, {seconds:.1f} s" if programs else ""
        print(f"{reused}{new:,} runs in {in_words(time.monotonic() - state.start)}{compiled}.")
        if state.not_finite:
            print(f"{state.not_finite:,} runs ended in numbers that are not finite (NaN).")
        for message, count in sorted(state.errors.items(), key=lambda item: -item[1])[:10]:
            print(f"{count:,} runs failed: {message}")
        if not state.done:
            print(f"No results: no run finished. Errors: {self.folder / 'failures.json'}")
            return
        figure = self.folder / "figure.svg"
        print(f"Results: {self.folder / 'results.zarr'}" + (f"; figure: {figure}" if figure.is_file() else ""))
