"""The progress of a sweep on a terminal, on a stream, and in progress.json."""

import io
import json
import sys
import time

import pytest

from undertow.execution.sweeps.drive import State
from undertow.execution.sweeps.live import Live
from undertow.execution.sweeps.spec import as_spec

SPEC = as_spec("f.py:f", {"a": [1, 2, 3]}, seeds=400)


def state(seconds=10.0, **more):
    """The state of a driver that started this many seconds ago."""
    return State(SPEC.runs, start=time.monotonic() - seconds, **more)


def progress(folder):
    return json.loads((folder / "progress.json").read_text())


def test_the_first_block_gives_the_expected_time_once(tmp_path, capsys):
    with Live(SPEC, tmp_path, quiet=False) as live:
        for blocks_done in (1, 2):
            live.update(state(done=100, blocks=12, blocks_done=blocks_done, block_seconds=2.0, slots=3))
    # 11 blocks on 3 workers are 4 rounds of 2 s
    assert capsys.readouterr().out == "A block takes 2 s: about 8 s.\n"


def test_on_a_stream_a_line_comes_every_half_minute(tmp_path, capsys):
    with Live(SPEC, tmp_path, quiet=False) as live:
        live.update(state(done=600))
        assert capsys.readouterr().out == ""
        live.last_line -= 31
        live.update(state(done=599, failed=1))
        live.update(state(done=700))
    out = capsys.readouterr().out
    assert out == "600 of 1,200 runs, 60 runs/s, 10 s left, 1 failed\n"


def test_the_time_left_is_not_printed_before_a_run_is_done(tmp_path, capsys):
    with Live(SPEC, tmp_path, quiet=False) as live:
        live.last_line -= 31
        live.update(state())
    assert capsys.readouterr().out == "0 of 1,200 runs, 0 runs/s\n"


def test_progress_is_written_for_the_status(tmp_path):
    before = time.time()
    with Live(SPEC, tmp_path, quiet=True) as live:
        live.update(state(done=300, failed=300, reused=100))
    written = progress(tmp_path)
    assert written["done"] == 300
    assert written["rate"] == pytest.approx(50, rel=0.05)
    assert written["left"] == pytest.approx(12, rel=0.05)
    assert before <= written["at"] <= time.time()


def test_progress_is_finite_before_a_run_is_done(tmp_path):
    """JSON has no infinity."""
    with Live(SPEC, tmp_path, quiet=True) as live:
        live.update(state())
    assert progress(tmp_path)["left"] == 1e9


def test_progress_is_written_once_per_second(tmp_path):
    with Live(SPEC, tmp_path, quiet=True) as live:
        live.update(state(done=100))
        live.update(state(done=200))
        assert progress(tmp_path)["done"] == 100
        live.last_write -= 1.5
        live.update(state(done=300))
    assert progress(tmp_path)["done"] == 300


def test_the_summary_counts_new_runs_failures_and_compilations(tmp_path, capsys):
    (tmp_path / "figure.svg").touch()
    errors = {f"Error: number {k}": k for k in range(1, 13)}
    end = state(done=1100, failed=78, reused=1000, not_finite=3, errors=errors, compiled={"a": (2, 1.5), "b": (1, 0.5)})
    Live(SPEC, tmp_path, quiet=False).end(end)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1,000 of 1,200 runs were stored already; 178 runs in 10 s; 3 compilations, 2.0 s."
    assert lines[1] == "3 runs ended in numbers that are not finite (NaN)."
    assert lines[2:-1] == [f"{k} runs failed: Error: number {k}" for k in range(12, 2, -1)]  # the ten most frequent
    assert lines[-1] == f"Results: {tmp_path / 'results.zarr'}; figure: {tmp_path / 'figure.svg'}"


def test_the_summary_of_a_new_sweep_without_a_figure_is_short(tmp_path, capsys):
    Live(SPEC, tmp_path, quiet=False).end(state(done=1200))
    assert capsys.readouterr().out.splitlines() == ["1,200 runs in 10 s.", f"Results: {tmp_path / 'results.zarr'}"]


def test_the_summary_names_no_results_where_no_run_finished(tmp_path, capsys):
    Live(SPEC, tmp_path, quiet=False).end(state(failed=1200, errors={"ValueError: boom": 1200}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "1,200 runs failed: ValueError: boom", f"No results: no run finished. Errors: {tmp_path / 'failures.json'}",
    ]  # fmt: skip


def test_a_quiet_sweep_prints_nothing(tmp_path, capsys):
    with Live(SPEC, tmp_path, quiet=True) as live:
        live.print("a sentence")
        live.last_line -= 31
        live.update(state(done=10, blocks=2, block_seconds=1.0))
        live.end(state(done=10, errors={"Error": 1}))
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def test_on_a_terminal_sentences_stand_above_a_bar_and_keep_their_brackets(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Live(SPEC, tmp_path, quiet=False) as live:
        live.print("a plan of [b]größe[/b]")
        live.update(state(done=300, failed=2))
        assert live.bar.tasks[0].completed == 302
        assert live.bar.tasks[0].description == "30.2 runs/s, 30 s left, 2 failed"
    assert "a plan of [b]größe[/b]" in terminal.getvalue()
    assert live.bar.live.is_started is False
