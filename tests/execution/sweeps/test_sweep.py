"""Sweeps keep finished runs, are addressed by their code and settings, and report mistakes of the user."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import xarray

import undertow as ut
from tests.execution.sweeps.functions import walk
from undertow.execution.store import StoreError
from undertow.execution.sweeps import sweep
from undertow.execution.sweeps.spec import SpecError, as_spec

FILE = str(Path(__file__).with_name("functions.py"))


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


def failing(key, *, a: float):
    raise ValueError("boom")


def test_the_status_of_a_sweep_whose_runs_all_failed_has_the_errors(tmp_path):
    with pytest.raises(StoreError, match="every run failed: ValueError: boom"):
        ut.sweep(failing, {"a": [1.0, 2.0]}, seeds=3, out=tmp_path)
    first, second = sweep.status(tmp_path)
    assert "0 of 6 runs done, 6 failed; not running" in first
    assert second.startswith("  6 failed: ValueError: boom (test_sweep.py, line ")
    (folder,) = tmp_path.iterdir()
    (folder / "failures.json").write_text("[]")
    assert len(sweep.status(tmp_path)) == 1


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


@pytest.mark.parametrize(
    ("progress", "terminal", "printed"),
    [(None, False, False), (None, True, True), (False, True, False), (True, False, True)],
)
def test_a_terminal_shows_the_progress(progress, terminal, printed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    ut.sweep(lambda key, *, a: {"x": a}, {"a": [1.0]}, out=tmp_path, progress=progress)
    assert ("Results: " in capsys.readouterr().out) == printed
