"""What a person sees while a sweep runs: the plan, a bar with the rate and the time left, and how it ended."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from undertow.execution import store
from undertow.execution.sweeps.drive import State
from undertow.execution.sweeps.spec import Spec

__all__ = ["Live"]


class Live:
    """A bar on a terminal, a few lines elsewhere; and progress.json in the folder, for `undertow sweep status`."""

    def __init__(self, spec: Spec, folder: Path, quiet: bool):
        self.spec, self.folder, self.quiet = spec, folder, quiet
        self.bar: Any = None
        self.told_time = False
        self.written, self.said = 0.0, time.monotonic()

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

    def tell(self, sentence: str) -> None:
        """A line."""
        if self.bar is not None:
            self.bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        elif not self.quiet:
            print(sentence, flush=True)

    def update(self, state: State) -> None:
        """After every block."""
        from undertow.execution.sweeps.sweep import in_words

        now = time.monotonic()
        left = state.seconds_left
        if not self.told_time and state.block_seconds:
            self.told_time = True
            blocks = -(-(state.blocks - state.blocks_done) // max(1, state.slots))
            self.tell(f"A block takes {in_words(state.block_seconds)}: about {in_words(blocks * state.block_seconds)}.")
        words = f"{state.rate:,.3g} runs/s"
        if math.isfinite(left):
            words += f", {in_words(left)} left"
        if state.failed:
            words += f", {state.failed} failed"
        if self.bar is not None:
            self.bar.update(self.task, completed=state.done + state.failed, description=words)
        elif now - self.said > 30:
            self.said = now
            self.tell(f"{state.done + state.failed:,} of {state.runs:,} runs, {words}")
        if now - self.written > 1:
            self.written = now
            facts = {"done": state.done, "rate": state.rate, "left": min(left, 1e9), "at": time.time()}
            store.write_bytes(self.folder / "progress.json", json.dumps(facts).encode())

    def end(self, state: State) -> None:
        """The last lines."""
        from undertow.execution.sweeps.sweep import in_words

        if self.quiet:
            return
        new = state.done + state.failed - state.reused
        kept = f"{state.reused:,} of {state.runs:,} runs were there already; " if state.reused else ""
        programs, seconds = state.compilations
        compiled = f"; {programs} compilations, {seconds:.1f} s" if programs else ""
        print(f"{kept}{new:,} runs in {in_words(time.monotonic() - state.began)}{compiled}.")
        if state.not_finite:
            print(f"{state.not_finite:,} runs ended in numbers that are not finite (NaN).")
        for sentence, count in sorted(state.sentences.items(), key=lambda item: -item[1])[:10]:
            print(f"{count:,} runs failed: {sentence}")
        figure = self.folder / "figure.svg"
        print(f"Results: {self.folder / 'results.zarr'}" + (f"; figure: {figure}" if figure.is_file() else ""))
