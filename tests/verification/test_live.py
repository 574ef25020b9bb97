"""The verdicts of a verification as they are printed, and the bar on a terminal."""

import io
import sys
from dataclasses import replace

import pytest

from tests.verification.work import CHECK, result_of
from undertow.verification.criterion import AtLevel
from undertow.verification.live import STYLES, Live
from undertow.verification.report import VERDICTS
from undertow.verification.result import CheckResult, Task

RESULT = result_of(Task("a-claim", "smoke", {}, 0), checks=(CHECK,), seconds=3.5, compile_seconds=1.25)


def printed(result, capsys, reused=False) -> str:
    """Return the line of a verdict."""
    with Live(1) as live:
        live.started(result.claim)
        live.result(result, reused)
    assert live.running == {}
    (line,) = capsys.readouterr().out.splitlines()
    return line


def test_a_verdict_is_a_line_with_times_and_the_first_check(capsys):
    assert printed(RESULT, capsys) == "holds        a-claim                        1.2 s + 2.2 s  w: 1 ± 0.1"


def test_a_stored_verdict_has_no_times(capsys):
    assert (
        printed(RESULT, capsys, reused=True) == "holds        a-claim                                 kept  w: 1 ± 0.1"
    )


def test_a_surprise_names_the_expected_verdict(capsys):
    line = printed(replace(RESULT, verdict="corrected"), capsys)
    assert line.startswith("corrected    a-claim ")
    assert line.endswith("  w: 1 ± 0.1  expected: holds")


def test_an_inconclusive_verdict_names_the_seeds_that_would_decide(capsys):
    line = printed(replace(RESULT, verdict="inconclusive", seeds_needed=123), capsys)
    assert line.endswith("  expected: holds  (123 seeds are needed to decide)")


def test_an_error_shows_its_note(capsys):
    """Brackets in a message are not markup of the terminal."""
    broken = replace(RESULT, verdict="error", checks=(), note="IndexError: größe[i] of [/b]")
    assert printed(broken, capsys).endswith("  IndexError: größe[i] of [/b]  expected: holds")


def test_a_p_value_is_named(capsys):
    check = CheckResult("x[i]", 0.25, 1.0, 0.0, AtLevel(1e-3, "KS"), "holds")
    assert printed(replace(RESULT, checks=(check,)), capsys).endswith("  x[i]: p = 0.25")


def test_a_value_that_is_not_a_number_is_printed(capsys):
    check = replace(CHECK, measured=float("nan"))
    assert printed(replace(RESULT, checks=(check,)), capsys).endswith("  w: nan ± 0.1")


def test_every_verdict_has_a_style():
    assert set(STYLES) == set(VERDICTS)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def test_the_bar_names_the_claims_that_run(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with Live(2) as live:
        live.started("a-claim")
        live.started("another")
        task = live.bar.tasks[0]
        assert (task.description, task.completed, task.total) == ("a-claim, another", 0, 2)
        live.result(RESULT, reused=False)
        assert (task.description, task.completed) == ("another", 1)
    assert not live.bar.live.is_started


def test_a_stored_result_that_never_started_counts(capsys):
    with Live(1) as live:
        live.result(RESULT, reused=True)
        assert live.bar.tasks[0].completed == 1
    assert capsys.readouterr().out


@pytest.mark.parametrize("total", [0, 1])
def test_without_a_verdict_nothing_is_printed(total, capsys):
    with Live(total):
        pass
    assert capsys.readouterr() == ("", "")
