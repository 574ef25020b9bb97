"""Sweeps give what each point gives alone, keep what is finished, and say what went wrong."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import undertow as ut
from tests.execution.light import describe, pool, value
from tests.execution.light import work as light_work
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
from undertow.execution import store
from undertow.execution.sweeps import blocks, drive, sweep
from undertow.execution.sweeps.digest import digest_of
from undertow.execution.sweeps.spec import SpecError, as_spec, point_words
from undertow.execution.workers import InProcess, Processes

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
        for values in result["values"].values():
            values[::3] = np.nan
        return result | {"errors": dict.fromkeys(range(0, len(task["seeds"]), 3), "at first")}

    def refuse(task):
        raise ArithmeticError("as a whole")

    def refuse_each(task):
        return light_work(task) | {"values": {}, "errors": dict.fromkeys(range(len(task["seeds"])), "one by one")}

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
        assert list(state.sentences.values()) == [state.failed]
    job.work = light_work
    assert drive.run(job, InProcess).done == 48
    assert np.isfinite(xarray.open_zarr(data).y).all()


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


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.0314, "0.031 s"), (59.4, "59 s"), (59.7, "1 min 0 s"), (119.9, "2 min 0 s"),
        (3599.7, "1 h 0 min"), (7199.9, "2 h 0 min"), (9000, "2 h 30 min"), (-300, "-5 min 0 s"),
    ],
)  # fmt: skip
def test_times_in_words(seconds, words):
    assert sweep.in_words(seconds) == words


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
    assert all(sentence in told for told in state.sentences)
    assert len(state.sentences) == (failed > 0)
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


HEADER = "import functools\nimport jax\nimport numpy as np\n"


@pytest.mark.parametrize(
    ("around", "uses", "change"),
    [
        ("def helper(a):\n    return 2 * a\n", "helper(a)", ("2", "3")),
        ("def inner(a):\n    return 2 * a\ndef helper(a):\n    return inner(a)\n", "helper(a)", ("2", "3")),
        ("def helper(a, k=2):\n    return k * a\n", "helper(a)", ("2", "3")),
        ("helper = jax.jit(lambda a: 2 * a)\n", "helper(a)", ("2", "3")),
        ("helper = jax.vmap(jax.grad(lambda a: 2 * a))\n", "helper(a)", ("2", "3")),
        ("helper = functools.partial(lambda a, b: a * b, 2)\n", "helper(a)", ("2", "3")),
        ("helpers = [lambda a: 2 * a]\n", "helpers[0](a)", ("2", "3")),
        ("def make(k):\n    return lambda a: k * a\none, two = make(2), make(3)\n", "one(a) - two(a)",
         ("make(2), make(3)", "make(3), make(2)")),
        ("def tripled(f):\n    @functools.wraps(f)\n    def g(a):\n        return 3 * f(a)\n    return g\n"
         "@tripled\ndef helper(a):\n    return a\n", "helper(a)", ("3", "4")),
        ("table = np.array([3.0, 2.0])\n", "a * table[0]", ("3.0", "3.5")),
        ("table = np.array([1, 2])\n", "a * table[0]", ("2]", "2], np.int32")),
        ("table = np.zeros((2, 3))\n", "a * table.shape[0]", ("(2, 3)", "(3, 2)")),
        ("table = jax.numpy.arange(3.0)\n", "a * table", ("3.0", "4.0")),
        ("start = jax.random.key(0)\n", "jax.random.normal(start)", ("key(0)", "key(1)")),
        ("options = {'rate': {'low': [1.0, (2.0,)]}}\n", "options", ("2.0", "3.0")),
        ("names = {'a', 'b'}\n", "len(names)", ("'b'", "'c'")),
        ("library = np\n", "library.pi", ("= np", "= jax")),
        ("function = np.sin\n", "function(a)", ("sin", "cos")),
        ("function = jax.numpy.sin\n", "function(a)", ("sin", "cos")),
        ("def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n != 0 and even(n - 1)\n", "even(a)",
         ("n != 0", "n > 0")),
        ("loop = [1]\nloop.append(loop)\n", "loop[0]", ("[1]", "[2]")),
        ("", "a", ("a: float", "a: int")),
        ("", "a in {'left', 'right'}", ("right", "up")),
    ],
)  # fmt: skip
def test_a_function_is_also_what_it_uses(around, uses, change):
    source = f"{HEADER}{around}def f(key, *, a: float = 1.0):\n    return {{'x': {uses}}}\n"
    spaces = {}, {}, {}
    changed = source.replace(*change)
    assert changed != source
    for text, space in zip((source, source.replace(HEADER, f"{HEADER}\n\n"), changed), spaces, strict=True):
        exec(text, space)
    one, moved, other = (digest_of(space["f"]) for space in spaces)
    assert one == moved != other


def test_objects_count_by_their_types():
    """And never stop a sweep."""

    class Odd:
        def __getattr__(self, name):
            raise RuntimeError("ask me nothing")

    digests = set()
    for thing in (object(), object(), Odd(), open, Path, threading.Lock()):
        space = {"thing": thing}
        exec("def f(key, *, a: float):\n    return {'x': a if thing else 0}\n", space)
        digests.add(digest_of(space["f"]))
    assert len(digests) == 5


def test_a_function_with_sets_is_found_again_by_another_process():
    """The order of a set of words depends on the process."""
    program = (
        "from undertow.execution.sweeps.digest import digest_of\nwords = {'a', 'b', 'c', ('d', frozenset('efg'))}\n"
        "def f(key, *, a: str):\n    return {'x': a in words or a in {'left', 'right', 'up', 'down'}}\n"
        "print(digest_of(f), [*words])"
    )
    said = [
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                       capture_output=True, text=True).stdout.split(" ", 1)
        for seed in ("1", "2")
    ]  # fmt: skip
    assert said[0][1] != said[1][1]
    assert said[0][0] == said[1][0]


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


def test_workers_have_settings_of_their_own():
    """Whatever the environment says: results of workers are found again without a word of it."""
    program = (
        "from undertow.execution import settings; settings.configure(); "
        "assert settings.settings() == {n: str(v) for n, v in settings.SETTINGS.items()}, settings.settings(); "
        "import jax; print(jax.random.key_impl(jax.random.key(0)), jax.numpy.ones(1).dtype)"
    )
    environment = {
        "JAX_DEFAULT_PRNG_IMPL": "rbg",
        "JAX_DEFAULT_MATMUL_PRECISION": "high",
        "JAX_RANDOM_SEED_OFFSET": "7",
    }
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True)
    assert done.stdout.split() == ["threefry2x32", "float64"], done.stderr


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
