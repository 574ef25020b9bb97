"""Progress reports: callbacks, and a bar on a clock that the test moves."""

import sys

import pytest

from undertow import _progress
from undertow._progress import PATIENCE_SECONDS, Progress, StageProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands at `clock[0]` seconds."""
    seconds = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: seconds[0])
    return seconds


@pytest.fixture(params=[False, True], ids=["no terminal", "terminal"])
def terminal(request, monkeypatch):
    """Whether stderr is a terminal."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: request.param, raising=False)
    return request.param


def test_a_callback_gets_every_update_and_no_bar_appears(clock, terminal):
    calls = []
    with Progress("descend", 10, lambda done, total: calls.append((done, total))) as progress:
        progress.update(3)
        clock[0] += 10 * PATIENCE_SECONDS
        progress.update(10)
        assert progress.bar is None
    assert calls == [(3, 10), (10, 10)]


@pytest.mark.parametrize("report", [None, True, False])
def test_a_bar_appears_on_a_terminal_after_the_patience(report, clock, terminal):
    """`None` shows it where stderr is a terminal, `True` always, `False` never."""
    with Progress("descend", 10, report) as progress:
        clock[0] += PATIENCE_SECONDS
        progress.update(1)
        assert progress.bar is None
        clock[0] += 0.1
        progress.update(4)
        assert (progress.bar is not None) == (report is True or (report is None and terminal))
        if progress.bar is not None:
            clock[0] += 1.0
            progress.update(7)
            (task,) = progress.bar.tasks
            assert (task.description, task.completed, task.total) == ("descend", 7, 10)
            assert progress.bar.console.stderr
    assert progress.bar is None or not progress.bar.live.is_started


def test_a_bar_stops_where_the_work_raises(clock):
    def work():
        with Progress("descend", 10, True) as progress:
            bars.append(progress)
            clock[0] += 2 * PATIENCE_SECONDS
            progress.update(1)
            raise ArithmeticError

    bars = []
    with pytest.raises(ArithmeticError):
        work()
    assert not bars[0].bar.live.is_started


def test_stages_share_one_bar(clock, terminal):
    with StageProgress("equilibrate", 2, None) as stages:
        stages.start("noise", 3)
        clock[0] += 0.6 * PATIENCE_SECONDS
        stages.advance()
        assert stages.progress.bar is None
        stages.start("curvature", None)
        clock[0] += 0.6 * PATIENCE_SECONDS  # the patience is counted over both stages
        stages.advance()
        assert (stages.progress.bar is not None) == terminal
        if terminal:
            (task,) = stages.progress.bar.tasks
            assert (task.description, task.completed, task.total) == ("equilibrate: curvature (2/2)", 1, None)
            stages.start("more", 5)
            stages.advance()
            assert (task.description, task.completed, task.total) == ("equilibrate: more (3/2)", 1, 5)
    assert stages.progress.bar is None or not stages.progress.bar.live.is_started


def test_a_callback_gets_the_name_of_the_stage(clock, terminal):
    calls = []
    with StageProgress("equilibrate", 2, lambda *report: calls.append(report)) as stages:
        stages.start("noise", 2)
        clock[0] += 10 * PATIENCE_SECONDS
        stages.advance()
        stages.start("curvature", None)
        stages.advance()
        assert stages.progress.bar is None
    assert calls == [("noise", 1, 2), ("curvature", 1, None)]


def test_stages_can_be_switched_off(clock, terminal):
    with StageProgress("equilibrate", 1, False) as stages:
        stages.start("noise", 2)
        clock[0] += 10 * PATIENCE_SECONDS
        stages.advance()
        assert stages.progress.bar is None
