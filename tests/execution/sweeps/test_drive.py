"""The driver keeps finished blocks, repairs damaged ones, and reports failures."""

import contextlib
import json
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
    (data / "x" / ".0.0.0.abc.partial").write_bytes(b"")  # what a killed driver left
    (data / "x" / "1.0.0").write_bytes(b"cut")  # a chunk cut short
    (data / "y" / "2.0.0.0").unlink()  # and one lost
    third = drive.run(job, InProcess)
    assert log(light_folder)[count:] == ["1.0.0", "2.0.0"]
    assert third.done == 48
    assert not (data / "x" / ".0.0.0.abc.partial").exists()
    xarray.testing.assert_identical(xarray.open_zarr(data).load(), whole)


@pytest.mark.parametrize("name", ["sweep.json", "plan.json", "results.zarr/.zattrs", "results.zarr/.undertow.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", None])
def test_damaged_metadata_are_written_again_and_no_block_runs(light_folder, name, content):
    job = light_job(light_folder)
    drive.run(job, InProcess)
    file = job.folder / name
    before, count = file.read_bytes(), len(log(light_folder))
    file.write_bytes(content) if content is not None else file.unlink()
    if name.startswith("results.zarr"):
        assert f"1 damaged in results.zarr: {file.name}; " in sweep.status(job.folder)[1]
    state = drive.run(job, InProcess)
    assert (state.reused, len(log(light_folder))) == (48, count)
    assert file.read_bytes() == before


def test_a_flipped_byte_is_found_and_its_block_runs_again(light_folder):
    job = light_job(light_folder)
    drive.run(job, InProcess)
    chunk = job.folder / "results.zarr" / "y" / "1.2.0.0"
    before, count = chunk.read_bytes(), len(log(light_folder))
    chunk.write_bytes(before[:9] + bytes([before[9] ^ 4]) + before[10:])
    status = sweep.status(job.folder)
    assert "46 of 48 runs done; not running" in status[0]
    assert status[1] == "  1 damaged in results.zarr: y/1.2.0.0; the same command repairs what is damaged."
    state = drive.run(job, InProcess)
    assert (state.done, state.reused) == (48, 46)
    assert log(light_folder)[count:] == ["1.2.0"]
    assert chunk.read_bytes() == before
    assert len(sweep.status(job.folder)) == 1


def test_a_sweep_that_moves_to_another_path_is_the_same_sweep(light_folder):
    """The metadata hold the path of the user's file with which the sweep began."""
    job = light_job(light_folder)
    drive.run(job, InProcess)
    job.spec = replace(job.spec, experiment="/elsewhere/light.py:work")
    (job.folder / "results.zarr" / ".zgroup").write_bytes(b"")
    assert drive.run(job, InProcess).reused == 48


def test_a_folder_that_is_removed_ends_the_run(light_folder):
    """Another run may have started in the folder by then: nothing is written to it."""
    job = light_job(light_folder)

    def remove(state, results):
        shutil.rmtree(job.folder)
        job.folder.mkdir()

    with pytest.raises(store.StoreError, match="the folder was removed while this run was writing to it"):
        drive.run(job, InProcess, report=remove)
    assert list(job.folder.iterdir()) == []
    assert drive.run(job, InProcess).done == 48


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


def test_a_driver_killed_before_it_created_the_dataset_leaves_nothing(light_folder):
    """A temporary folder was never removed and stayed beside the dataset that the next driver created."""
    job = light_job(light_folder)
    left = job.folder / ".results.zarr.abc.partial" / "done"
    left.mkdir(parents=True)
    assert drive.run(job, InProcess).done == 48
    assert not left.parent.exists()


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
