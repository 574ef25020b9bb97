"""The driver keeps finished blocks, repairs damaged ones, and reports failures."""

import contextlib
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray

from tests.execution.light import describe, pool, value
from tests.execution.light import work as light_work
from undertow.execution import store
from undertow.execution.sweeps import drive, sweep
from undertow.execution.sweeps.plan import Job
from undertow.execution.sweeps.spec import as_spec
from undertow.execution.workers import InProcess, Processes


def light_job(folder: Path, **more) -> Job:
    spec = as_spec("light.py:work", {"a": [0, 1, 2], "b": [0, 1, 2, 3]}, seeds=4, **more)
    return Job(spec, "light", "", folder / "sweep", describe, light_work)


@pytest.fixture
def light_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERTOW_LIGHT", str(tmp_path))
    return tmp_path


def log(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "log").read_text().splitlines()]


def test_finished_blocks_are_kept_and_damaged_ones_run_again(light_folder):
    job = light_job(light_folder)
    first = drive.run(job, InProcess)
    assert (first.done, first.reused) == (48, 0)
    count = len(log(light_folder))
    again = drive.run(job, InProcess)
    assert (again.done, again.reused) == (48, 48)
    assert len(log(light_folder)) == count
    data = light_folder / "sweep" / "results.zarr"
    whole = xarray.open_zarr(data).load()
    a, b, seed = np.meshgrid(whole.a, whole.b, whole.seed, indexing="ij")
    np.testing.assert_allclose(whole.x, value(a, b, seed))
    (data / "x" / ".0.0.0.abc").write_bytes(b"")  # what a killed driver left
    (data / "x" / "1.0.0").write_bytes(b"cut")  # a chunk cut short
    (data / "y" / "2.0.0.0").unlink()  # and one lost
    third = drive.run(job, InProcess)
    assert log(light_folder)[count:] == ["1.0.0", "2.0.0"]
    assert third.done == 48
    assert not (data / "x" / ".0.0.0.abc").exists()
    xarray.testing.assert_identical(xarray.open_zarr(data).load(), whole)
    shutil.copy(data / ".zattrs", light_folder)
    (data / ".zattrs").write_text("{}")
    with pytest.raises(store.StoreError, match=r"damaged.*delete"):
        drive.run(job, InProcess)


@pytest.mark.parametrize("content", ["", "[]", '{"tile": [1, 2, 4]}', '{"tile": 3}', None])
def test_a_damaged_plan_is_told_and_nothing_touched(light_folder, content):
    job = light_job(light_folder)
    drive.run(job, InProcess)
    plan = job.folder / "plan.json"
    if content is None:
        plan.unlink()
    else:
        plan.write_text(content)
    files = lambda: {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in job.folder.rglob("*") if p.is_file()}
    before, count = files(), len(log(light_folder))
    for ask in (lambda: drive.run(job, InProcess), lambda: sweep.status(job.folder)):
        with pytest.raises(store.StoreError, match=r"plan.json: damaged.*delete"):
            ask()
    assert "damaged" in sweep.status(light_folder)[0]
    assert len(log(light_folder)) == count
    lock = job.folder / ".lock"
    assert {p: kept for p, kept in files().items() if p != lock} == {p: kept for p, kept in before.items() if p != lock}


def test_what_is_finished_of_a_block_stays_when_the_block_fails(light_folder):
    """Runs that failed, and runs whose values are there without their flags, have NaN."""
    job = light_job(light_folder)

    def partly(task):
        result = light_work(task)
        for values in result.values.values():
            values[::3] = np.nan
        return replace(result, errors=dict.fromkeys(range(0, len(task.seeds), 3), "at first"))

    def refuse(task):
        raise ArithmeticError("as a whole")

    def refuse_each(task):
        return replace(light_work(task), values={}, errors=dict.fromkeys(range(len(task.seeds)), "one by one"))

    job.work = partly
    first = drive.run(job, InProcess)
    assert 0 < first.failed < 48
    data = job.folder / "results.zarr"
    known = xarray.open_zarr(data).load()
    assert json.loads((data / "done" / ".zarray").read_text())["chunks"] == [1, 1, 2]
    kept = (known.done == 1) & ~((known.a == 1) & (known.b == 0) & (known.seed < 2))
    for work in (refuse, refuse_each):
        (data / "done" / "1.0.0").unlink(missing_ok=True)  # a driver that was killed before it wrote the flags
        job.work = work
        state = drive.run(job, InProcess)
        found = xarray.open_zarr(data).load()
        xarray.testing.assert_equal(found.done, xarray.where(kept, 1, 2).astype("i1"))
        for name in ("x", "y"):
            xarray.testing.assert_equal(found[name], known[name].where(kept))
        assert (state.done, state.failed) == (kept.sum(), 48 - kept.sum())
        assert list(state.errors.values()) == [state.failed]
    job.work = light_work
    assert drive.run(job, InProcess).done == 48
    assert np.isfinite(xarray.open_zarr(data).y).all()


def test_two_drivers_do_not_share_a_folder(light_folder):
    job = light_job(light_folder)
    job.folder.mkdir()
    with store.folder_lock(job.folder), pytest.raises(store.StoreError, match="another run"):
        drive.run(job, InProcess)


def test_a_status_refuses_nobody(light_folder, monkeypatch):
    """It holds the lock for an instant, here until a driver or another status has tried once."""
    job = light_job(light_folder)
    job.folder.mkdir()
    with contextlib.ExitStack() as instant:
        instant.enter_context(store.folder_lock(job.folder))
        monkeypatch.setattr(time, "sleep", lambda seconds: instant.close())
        assert drive.run(job, InProcess).done == 48
        instant.enter_context(store.folder_lock(job.folder))
        assert "48 of 48 runs done; finished." in sweep.status(job.folder)[0]


def test_a_sweep_that_is_late_has_no_time_left(light_folder):
    job = light_job(light_folder)
    drive.run(job, InProcess)
    (job.folder / "progress.json").write_text(json.dumps({"rate": 2.0, "left": 60.0, "at": time.time() - 360}))
    with store.folder_lock(job.folder):
        assert "about 0 s left." in sweep.status(job.folder)[0]


@pytest.mark.parametrize(
    ("kind", "failed", "sentence"),
    [
        ("die", 0, ""),
        pytest.param("hang", 2, "longer than the limit", marks=pytest.mark.slow),
        ("raise", 2, "raised on purpose"),
        ("diverge", 0, ""),
    ],
)
def test_a_task_that_misbehaves_stops_nobody_else(light_folder, kind, failed, sentence):
    (light_folder / "faults.json").write_text(json.dumps({"1.2.0": kind}))
    job = light_job(light_folder, time_limit=4.0 if kind == "hang" else 60.0)
    state = drive.run(job, lambda: Processes(2, pool))
    assert state.done == 48 - failed
    assert state.not_finite == (kind == "diverge")
    assert all(sentence in told for told in state.errors)
    assert len(state.errors) == (failed > 0)
    again = drive.run(job, lambda: Processes(2, pool))  # the file beside it says that it misbehaves once
    assert again.done == 48


def test_ten_faults_at_random_times(tmp_path):
    """Drivers and workers killed, disks full, two drivers: nothing lost, nothing twice, nothing corrupt."""
    import subprocess
    import sys

    paths = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "tests.execution.sweeps.faults", str(tmp_path / "f"), "10", "0"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 faults: nothing lost" in done.stdout


def test_an_interrupted_sweep_goes_on(light_folder):
    """Ctrl-C: the processes are gone at once, what is finished stays, and only the rest runs."""
    (light_folder / "faults.json").write_text(json.dumps({"0.0.0": "hang"}))
    job = light_job(light_folder)
    engines = []

    def engine():
        engines.append(Processes(2, pool))
        return engines[0]

    def interrupt(state, results):
        if state.done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive.run(job, engine, report=interrupt)
    assert engines[0].pool._processes is None
    state = drive.run(job, lambda: Processes(2, pool))
    assert state.reused >= 20
    assert state.done == 48
