"""Sweeps give what each point gives alone, keep what is finished, and say what went wrong."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import undertow as ut
from tests.execution.sweeps.functions import (
    brittle,
    empty,
    empty_alone,
    picky,
    ragged,
    shadowed,
    vector,
    vector_alone,
    walk,
    widening,
)
from undertow.execution.sweeps import blocks, drive, sweep
from undertow.execution.sweeps.spec import SpecError, as_spec, point_words
from undertow.execution.workers import InProcess

FILE = str(Path(__file__).with_name("functions.py"))
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


def test_no_point_is_rounded_to_the_precision_of_another(tmp_path):
    data = ut.sweep(widening, {"a": [0.0, 1.0]}, out=tmp_path)
    assert data.value.values.ravel().tolist() == [1.0, 1e300]
    assert (data.done == 1).all()


@pytest.mark.parametrize(
    ("function", "axis", "sentence"),
    [
        (vector, "value_0", "dimension 'value_0' of the output 'value' is also a name of the sweep"),
        (vector_alone, "value_0", "dimension 'value_0' of the output 'value' is also a name of the sweep"),
        (shadowed, "a", "dimension 'value_0' of the output 'value' is also an output"),
        (empty, "a", "returns no outputs"),
        (empty_alone, "a", "returns no outputs"),
    ],
)
def test_outputs_that_the_results_cannot_hold_are_told(tmp_path, function, axis, sentence):
    """Of a function that traces before anything runs; of another after its first block."""
    with pytest.raises(SpecError, match=sentence):
        ut.sweep(function, {axis: [1.0, 2.0]}, out=tmp_path)
    assert not list(tmp_path.glob("*/results.zarr"))
    assert len(list(tmp_path.glob("*/plan.json"))) == function.__name__.endswith("_alone")


def test_a_time_limit_needs_other_processes(tmp_path):
    with pytest.raises(SpecError, match=r"time_limit=2.*name it as 'file.py:name'"):
        ut.sweep(walk, {"step_size": [1.0]}, out=tmp_path, time_limit=2)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_says_so(tmp_path):
    """The real key: SIGINT to the whole group of processes, as a terminal sends it."""
    functions = Path(__file__).with_name("functions.py")
    (tmp_path / "s.toml").write_text(f'experiment = "{functions}:slow"\nseeds = 60\n[axes]\nx = [1.0, 2.0]\n')
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
    assert 0 < count <= done() < 120
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stdout + again.stderr
    assert done() == 120


def test_the_dataset_opens_without_a_warning(tmp_path):
    data = ut.sweep(walk, {"pair": {"zip": {"step_size": [0.1, 0.2], "drift": [1.0, 2.0]}}}, seeds=3, out=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = xarray.open_zarr(Path(data.folder) / "results.zarr")
    assert found.sizes["pair"] == 2
    np.testing.assert_array_equal(found.drift, [1.0, 2.0])
    assert found.drift.dims == ("pair",)
    assert (Path(data.folder) / "figure.svg").is_file() or found.end.isnull().any()


def test_a_changed_specification_starts_beside_the_old_one(tmp_path):
    first = ut.sweep(walk, {"step_size": [0.5, 1.0]}, out=tmp_path)
    second = ut.sweep(walk, {"step_size": [0.5, 1.5]}, out=tmp_path)
    third = ut.sweep(walk, {"step_size": [0.5, 1.0]}, out=tmp_path)
    assert first.folder == third.folder != second.folder
    assert len(list(tmp_path.glob("walk-*"))) == 2
    assert len(sweep.status(tmp_path)) == 2


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


def seen_by_jax(key, *, a: float):
    """What JAX's settings change: the bits of a float, a random number, a product of whole and single numbers."""
    promoted = jnp.ones(1, jnp.int32) * jnp.ones(1, jnp.float32)
    return {"bits": jnp.finfo(jnp.result_type(float)).bits + 0 * a, "x": jax.random.uniform(key) + 0 * promoted[0]}


def test_settings_of_jax_are_part_of_the_address(tmp_path):
    """A function runs in this process, with its settings: other settings are another sweep."""
    run = lambda: ut.sweep(seen_by_jax, {"a": [1.0]}, out=tmp_path)
    usual = run()
    with jax.enable_x64(True):
        double = run()
    with jax.default_prng_impl("rbg"):
        other = run()
    with jax.threefry_partitionable(False):
        older = run()
    with jax.default_matmul_precision("highest"):
        precise = run()
    assert [int(data.bits.item()) for data in (usual, double)] == [32, 64]
    assert usual.x.item() != other.x.item()
    folders = [data.attrs["folder"] for data in (usual, double, other, older, precise)]
    assert len({*folders}) == 5
    assert run().attrs["folder"] == folders[0]


def test_a_changed_helper_runs_again(tmp_path):
    space = {}
    exec("def helper(a):\n    return 2 * a\ndef f(key, *, a: float):\n    return {'x': helper(a)}\n", space)
    axes = {"a": [1.0, 2.0]}
    assert ut.sweep(space["f"], axes, out=tmp_path).x.values.ravel().tolist() == [2.0, 4.0]
    exec("def helper(a):\n    return 3 * a\n", space)
    assert ut.sweep(space["f"], axes, out=tmp_path).x.values.ravel().tolist() == [3.0, 6.0]


def test_a_process_that_ran_a_sweep_ends_without_a_word(tmp_path):
    program = "import undertow as ut\nut.sweep(lambda key, *, a: {'x': a}, {'a': [1.0, 2.0]}, out='out')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
