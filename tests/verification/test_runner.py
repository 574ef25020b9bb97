"""Claims run side by side, finished ones are kept, and one that fails or dies stops nobody else."""

import dataclasses
import threading
import time
from pathlib import Path

import pytest

from tests.verification.work import finish, finish_or_die, finish_or_hang
from undertow.execution import store
from undertow.execution.workers import InProcess
from undertow.verification import claims, runner
from undertow.verification.result import Task

NAMES = ["sensing-factor-two", "additive-covariance", "isotropic-covariance", "minibatch-covariance"]


@pytest.fixture
def tasks():
    return [runner.task_of(name, "smoke", claims[name].parameters("smoke"), 0) for name in NAMES]


def log(out: Path) -> list[str]:
    path = out / "log"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("jobs", [1, 3])
def test_results_come_in_order_and_are_kept(tasks, tmp_path, jobs):
    seen = []
    keep = lambda result, reused: seen.append((result.claim, reused))
    results = runner.run_claims(tasks, tmp_path, jobs, work=finish, report=keep)
    assert [r.claim for r in results] == NAMES
    assert sorted(log(tmp_path)) == sorted(NAMES)
    assert all(not reused for _, reused in seen)
    seen.clear()
    again = runner.run_claims(tasks, tmp_path, jobs, work=finish, report=keep)
    assert again == results
    assert all(reused for _, reused in seen)
    assert len(log(tmp_path)) == len(NAMES)
    runner.run_claims(tasks, tmp_path, 1, work=finish, fresh=True)
    assert len(log(tmp_path)) == 2 * len(NAMES)


def test_long_claims_begin_first(tasks, tmp_path, monkeypatch):
    for name in NAMES:
        monkeypatch.setitem(claims.loaded(), name, dataclasses.replace(claims[name], long=name in NAMES[2:]))
    results = runner.run_claims(tasks, tmp_path, 1, work=finish, workers=lambda jobs: InProcess())
    assert log(tmp_path) == [*NAMES[2:], *NAMES[:2]]
    assert [result.claim for result in results] == NAMES


def test_what_changed_runs_again(tasks, tmp_path):
    runner.run_claims(tasks, tmp_path, 1, work=finish)
    changed = list(tasks)
    changed[2] = runner.task_of(NAMES[2], "smoke", claims[NAMES[2]].parameters("smoke"), 1)
    runner.run_claims(changed, tmp_path, 1, work=finish)
    assert log(tmp_path) == [*NAMES, NAMES[2]]
    (tmp_path / "claims" / NAMES[0] / "data.zarr" / "a" / "0").write_bytes(b"")
    said = []
    runner.run_claims(changed, tmp_path, 1, work=finish, warn=said.append)
    assert log(tmp_path)[-1] == NAMES[0]
    assert "damaged and runs again" in said[0]


def test_results_of_a_newer_version_are_not_replaced(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FORMAT", store.FORMAT + 1)
    runner.run_claims(tasks[:1], tmp_path, 1, work=finish)
    monkeypatch.undo()
    with pytest.raises(store.StoreError, match="newer undertow"):
        runner.run_claims(tasks[:1], tmp_path, 1, work=finish)
    assert len(log(tmp_path)) == 1


def test_a_process_that_dies_is_a_result(tasks, tmp_path):
    results = runner.run_claims(tasks, tmp_path, 2, work=finish_or_die)
    verdicts = {r.claim: r.verdict for r in results}
    assert verdicts == {name: "error" if name == "additive-covariance" else "holds" for name in NAMES}
    assert "process died" in results[1].note


def test_an_interrupted_run_goes_on(tasks, tmp_path):
    """Ctrl-C while one claim hangs: the others are on disk, their processes are gone, and only it is left to run."""

    def interrupt(result, reused):
        if len(log(tmp_path)) == len(NAMES) - 1:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        runner.run_claims(tasks, tmp_path, 2, work=finish_or_hang, report=interrupt)
    assert sorted(log(tmp_path)) == sorted(set(NAMES) - {"additive-covariance"})
    results = runner.run_claims(tasks, tmp_path, 2, work=finish)
    assert log(tmp_path)[-1] == "additive-covariance"
    assert len(results) == len(NAMES)
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_full_accelerator_leaves_its_claims_waiting_and_no_others(monkeypatch):
    tasks = [Task(name, "smoke", {}, 0) for name, claim in claims.items() if claim.accelerated]
    running, waiting = tasks[: runner.ACCELERATED_AT_ONCE], tasks[runner.ACCELERATED_AT_ONCE :]
    assert runner._next(waiting, running) in waiting
    monkeypatch.setattr(runner, "has_accelerator", lambda: True)
    assert runner._next(waiting, running) is None
    assert runner._next(waiting, running[1:]) in waiting
    other = Task(NAMES[0], "smoke", {}, 0)
    assert runner._next([*waiting, other], running) == other
