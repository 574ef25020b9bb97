"""Sweeps give what each point gives alone, keep what is finished, and say what went wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray
from light import describe, pool, value
from light import work as light_work
from sweep_functions import brittle, picky, ragged, walk

import undertow as ut
from undertow.lab import store
from undertow.lab.sweeps import blocks, drive, sweep
from undertow.lab.sweeps.engines import Here, InProcess
from undertow.lab.sweeps.experiments import digest_of
from undertow.lab.sweeps.spec import SpecError, as_spec, point_words

FILE = str(Path(__file__).with_name("sweep_functions.py"))
AXES = {"step_size": {"log": [0.1, 10.0, 5]}, "steps": [10, 15]}


def key_of(point: dict, seed: int, root: int = 0):
    key = jax.random.key(root)
    for word in (*point_words(point), seed):
        key = jax.random.fold_in(key, word)
    return key


def test_a_batched_sweep_gives_what_each_point_gives_alone(tmp_path):
    data = ut.sweep(walk, AXES, parameters={"drift": 0.2}, seeds=6, out=tmp_path)
    assert data.end.dims == ("step_size", "steps", "seed")
    assert data.path.dims == ("step_size", "steps", "seed", "path_0")
    assert (data.done == 1).all()
    for i, j, k in ((0, 0, 0), (3, 1, 5), (4, 0, 2)):
        step_size, steps = float(data.step_size[i]), int(data.steps[j])
        key = key_of({"step_size": step_size, "steps": steps, "drift": 0.2}, k)
        alone = walk(key, step_size=step_size, steps=steps, drift=0.2)
        here = data.isel(step_size=i, steps=j, seed=k)
        np.testing.assert_allclose(here.end, alone["end"], rtol=1e-5)
        np.testing.assert_allclose(here.path, alone["path"], rtol=1e-5)
        assert bool(here.high) == bool(alone["high"])


def test_randomness_does_not_depend_on_the_blocks(tmp_path, monkeypatch):
    """Other widths, another grid around the same points: equal to rounding."""
    usual = ut.sweep(walk, {"step_size": [0.5, 1.0, 2.0]}, seeds=8, out=tmp_path / "a")
    monkeypatch.setattr(blocks, "FEWEST", 2)
    wide = ut.sweep(walk, {"step_size": [0.5, 1.0, 2.0]}, seeds=8, out=tmp_path / "b")
    other = ut.sweep(walk, {"step_size": [2.0, 3.0, 0.5]}, seeds=4, out=tmp_path / "c")
    np.testing.assert_allclose(usual.end, wide.end, rtol=1e-5)
    np.testing.assert_allclose(other.sel(step_size=0.5).end, usual.sel(step_size=0.5).end[:4], rtol=1e-5)
    again = ut.sweep(walk, {"step_size": [0.5, 1.0, 2.0]}, seeds=8, seed=1, out=tmp_path / "a")
    assert not np.isclose(again.end, usual.end).any()


def test_what_does_not_trace_runs_one_by_one_and_failures_are_told(tmp_path):
    data = ut.sweep(picky, {"n": [1, 2, 3, 4], "flavour": ["sweet", "sour"]}, seeds=2, out=tmp_path)
    np.testing.assert_array_equal(data.value.sel(n=2, flavour="sour"), 6.0)
    assert np.isnan(data.value.sel(n=3)).all()
    assert (data.done.sel(n=3) == 2).all()
    assert (data.done.sel(n=[1, 2, 4]) == 1).all()
    folder = Path(data.attrs["folder"])
    assert json.loads((folder / "failures.json").read_text())["failures"] == {"ArithmeticError: three is too many": 4}
    told = sweep.status(folder)
    assert "12 of 16 runs done, 4 failed; not running" in told[0]
    assert "4 failed: ArithmeticError: three is too many" in told[1]
    shapes = ut.sweep(ragged, {"n": [2, 3]}, out=tmp_path)
    assert shapes.done.values.ravel().tolist() == [1, 2]
    assert "shapes" in next(iter(json.loads((Path(shapes.folder) / "failures.json").read_text())["failures"]))


def test_of_a_batch_only_the_runs_that_raise_fail(tmp_path):
    data = ut.sweep(brittle, {"x": [1.0, 2.0, 4.0]}, seeds=2, out=tmp_path)
    assert data.done.values.tolist() == [[1, 1], [1, 1], [2, 2]]
    np.testing.assert_array_equal(data.value.sel(x=[1.0, 2.0]), [[2.0, 2.0], [4.0, 4.0]])
    (sentence,) = json.loads((Path(data.attrs["folder"]) / "failures.json").read_text())["failures"]
    assert "x is too large" in sentence


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_says_so(tmp_path):
    """The real key: SIGINT to the whole group of processes, as a terminal sends it."""
    functions = Path(__file__).with_name("sweep_functions.py")
    (tmp_path / "s.toml").write_text(f'experiment = "{functions}:slow"\nseeds = 30\n[axes]\nx = [1.0, 2.0]\n')
    command = [
        str(Path(sys.executable).with_name("undertow")),
        "sweep",
        "run",
        "s.toml",
        "--out",
        "kept",
        "--jobs",
        "2",
    ]
    first = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)  # fmt: skip
    deadline = time.monotonic() + 60
    done = lambda: sum(int((xarray.open_zarr(f).done == 1).sum()) for f in tmp_path.glob("kept/*/results.zarr"))
    while not (count := done()) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGINT)
    said, _ = first.communicate(timeout=30)
    assert first.returncode == 130, said
    assert "kept" in said
    assert 0 < count <= done() < 60
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stdout + again.stderr
    assert done() == 60


def test_the_dataset_opens_without_a_warning(tmp_path):
    data = ut.sweep(walk, {"pair": {"zip": {"step_size": [0.1, 0.2], "drift": [1.0, 2.0]}}}, seeds=3, out=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = xarray.open_zarr(Path(data.folder) / "results.zarr")
    assert found.sizes["pair"] == 2
    np.testing.assert_array_equal(found.drift, [1.0, 2.0])
    assert found.drift.dims == ("pair",)
    assert (Path(data.folder) / "figure.svg").is_file() or found.end.isnull().any()


def light_job(folder: Path, **more) -> drive.Job:
    spec = as_spec("light.py:work", {"a": [0, 1, 2], "b": [0, 1, 2, 3]}, seeds=4, **more)
    return drive.Job(spec, "light", "", folder / "sweep", describe, light_work)


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


def test_a_changed_specification_starts_beside_the_old_one(tmp_path):
    first = ut.sweep(walk, {"step_size": [0.5, 1.0]}, out=tmp_path)
    second = ut.sweep(walk, {"step_size": [0.5, 1.5]}, out=tmp_path)
    third = ut.sweep(walk, {"step_size": [0.5, 1.0]}, out=tmp_path)
    assert first.folder == third.folder != second.folder
    assert len(list(tmp_path.glob("walk-*"))) == 2
    assert len(sweep.status(tmp_path)) == 2


def test_two_drivers_do_not_share_a_folder(light_folder):
    job = light_job(light_folder)
    job.folder.mkdir()
    with store.folder_lock(job.folder), pytest.raises(store.StoreError, match="another run"):
        drive.run(job, InProcess)


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
    state = drive.run(job, lambda: Here(2, pool))
    assert state.done == 48 - failed
    assert state.not_finite == (kind == "diverge")
    assert all(sentence in told for told in state.sentences)
    assert len(state.sentences) == (failed > 0)
    again = drive.run(job, lambda: Here(2, pool))  # the file beside it says that it misbehaves once
    assert again.done == 48


def test_ten_faults_at_random_times(tmp_path):
    """Drivers and workers killed, disks full, two drivers: nothing lost, nothing twice, nothing corrupt."""
    import subprocess
    import sys

    program = Path(__file__).with_name("sweep_faults.py")
    paths = os.pathsep.join([str(program.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "f"), "10", "0"], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 faults: nothing lost" in done.stdout


@pytest.mark.parametrize(
    ("experiment", "axes", "sentence"),
    [
        (f"{FILE}:walk", {"stepsize": [1.0, 2.0]}, "no default|did you mean step_size"),
        (f"{FILE}:nothing", {"a": [1]}, "no function"),
        ("/nowhere.py:f", {"a": [1]}, "cannot be read"),
    ],
)
def test_mistakes_are_sentences(tmp_path, experiment, axes, sentence):
    with pytest.raises(SpecError, match=sentence):
        sweep.run_spec(as_spec(experiment, axes), tmp_path, jobs=1, quiet=True)
    assert not list(tmp_path.glob("*/results.zarr"))


@pytest.mark.slow
def test_a_claim_is_an_experiment(tmp_path):
    """Its checks, as a sweep records them, are those of the claim itself."""
    job = sweep._job(as_spec("sensing-factor-two", {"d": [2, 3]}), tmp_path, None)
    with jax.enable_x64(True):
        state = drive.run(job, InProcess)
    assert state.done == 2
    data = xarray.open_zarr(job.folder / "results.zarr").load()
    assert data.measured.dims == ("d", "seed", "check")
    np.testing.assert_allclose(data.measured.isel(check=0), 2.0, rtol=1e-6)
    verdict = json.loads((job.folder / "results.zarr" / ".zattrs").read_text())["verdicts"]
    assert verdict[int(data.verdict[0, 0, 0])] == "corrected"


@pytest.mark.slow
def test_from_the_command_line(tmp_path, capsys):
    """Other processes, a TOML file, compilations counted, a figure, and the status."""
    from undertow.cli import main

    spec = tmp_path / "s.toml"
    spec.write_text(f'experiment = "{FILE}:walk"\nseeds = 40\n[axes]\nstep_size = {{log = [0.1, 10.0, 8]}}\n'
                    "drift = {linear = [0.0, 1.0, 5]}\n")  # fmt: skip
    for expected in ("1,600 runs in ", "1,600 of 1,600 runs were there already"):
        with pytest.raises(SystemExit) as status:
            main(["sweep", "run", str(spec), "--out", str(tmp_path / "o")])
        assert status.value.code == 0
        assert expected in capsys.readouterr().out
    (folder,) = (tmp_path / "o").glob("walk-*")
    assert (folder / "figure.svg").is_file()
    with pytest.raises(SystemExit):
        main(["sweep", "status", str(folder)])
    assert "1,600 of 1,600 runs done; finished." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["sweep", "check", str(spec)])
    out = capsys.readouterr().out
    assert "compilation" in out
    assert "on the disk" in out


def test_the_address_of_a_function_is_what_it_does():
    """Not where it stands; with the numbers that it takes from around it."""
    source = "\nk = 3.0\ndef f(key, *, a: float = 1.0):\n    return {'x': sum(k * a for _ in range(3))}\n"
    one, moved, other, around = {}, {}, {}, {}
    exec(source, one)
    exec("\n\n" + source, moved)
    exec(source.replace("range(3)", "range(4)"), other)
    exec(source.replace("3.0", "4.0"), around)
    digests = [digest_of(space["f"]) for space in (one, moved, other, around)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_an_interrupted_sweep_goes_on(light_folder):
    """Ctrl-C: the processes are gone at once, what is finished stays, and only the rest runs."""
    (light_folder / "faults.json").write_text(json.dumps({"0.0.0": "hang"}))
    job = light_job(light_folder)
    engines = []

    def engine():
        engines.append(Here(2, pool))
        return engines[0]

    def interrupt(state, results):
        if state.done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive.run(job, engine, report=interrupt)
    assert engines[0].pool._processes is None
    state = drive.run(job, lambda: Here(2, pool))
    assert state.reused >= 20
    assert state.done == 48
