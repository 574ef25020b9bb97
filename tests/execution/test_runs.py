"""Saved runs: they continue with the same bits in another process, and every mistake is a sentence."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray

import undertow as ut
from undertow.execution import store
from undertow.execution.store import StoreError
from undertow.regime import Regime, SmallParameter

DATA = jnp.linspace(-1.0, 1.0, 24).reshape(8, 3)


def loss(p, x):
    return jnp.sum((jnp.tanh(p["w"] @ x) - p["b"]) ** 2)


def start(key):
    return {"w": jax.random.normal(key, (2, 3)), "b": jnp.zeros(2)}


NOISE = ut.Minibatch(ut.Problem(loss, DATA), 2)
OBSERVE = {"b": lambda p: p["b"], "norm": lambda p: jnp.sum(p["w"] ** 2)}
AVERAGE = {"mean": lambda p: {"b": p["b"][0]}}
SCHEDULE = optax.cosine_decay_schedule(0.1, 3000)

RUNS = {
    "plain": {"step_size": 0.05, "every": 70},
    "one run": {"step_size": 0.05, "every": 200, "seeds": None},
    "momentum and decay": {"step_size": 0.05, "momentum": 0.9, "weight_decay": 0.01, "every": 100, "observe": OBSERVE},
    "schedule": {"step_size": SCHEDULE, "every": 100, "observe": OBSERVE, "average": AVERAGE},
    "AdamW and a schedule": {"step_size": SCHEDULE, "optimiser": ut.AdamW(b2=0.95), "every": 100},
    "optax": {"optimiser": optax.lion(0.01), "step_size": 0.05, "every": 100},
    "lanes": {"step_size": 0.05, "seeds": 7, "lane_width": 3, "every": 100, "average": AVERAGE},
}
"""Arguments of `descend`; 1100 steps end inside a block."""


def descended(name: str, steps: int) -> ut.Trajectory:
    return ut.descend(NOISE, start, steps=steps, key=5, **{"seeds": 5, **RUNS[name]})


def functions(name: str) -> dict:
    """Return what cannot be stored of a run."""
    needed = {key: value for key, value in RUNS[name].items() if key in ("observe", "average")}
    if name == "optax":
        needed["optimiser"] = RUNS[name]["optimiser"]
    return needed | ({"step_size": SCHEDULE} if callable(RUNS[name]["step_size"]) else {})


def assert_same(a: ut.Trajectory, b: ut.Trajectory) -> None:
    """Check that two runs have the same fields, bit for bit."""
    for name in ("params", "observed", "step", "time", "slow_time", "diverged", "diverged_at"):
        one, other = getattr(a, name), getattr(b, name)
        assert jax.tree.structure(one) == jax.tree.structure(other), name
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert type(x) is type(y), name
            assert x.dtype == y.dtype, name
            np.testing.assert_array_equal(x, y, strict=True, err_msg=name)
    assert (a.seeds, a.clock, a.interrupted, a.regime) == (b.seeds, b.clock, b.interrupted, b.regime)


@pytest.mark.parametrize("name", RUNS)
def test_a_loaded_run_continues_with_the_same_bits(name, tmp_path):
    short = descended(name, 1100)
    path = short.save(tmp_path / "run.zarr")
    assert_same(ut.Trajectory.load(path), short)
    assert ut.Trajectory.load(path).facts == short.facts
    loaded = ut.Trajectory.load(path, noise=NOISE, **functions(name))
    longer = loaded.resume(steps=1300)
    assert_same(longer, descended(name, 2400))
    for one, other in ((short, loaded), (longer, descended(name, 2400))):
        jax.tree.map(np.testing.assert_array_equal, one.optimiser_state, other.optimiser_state)


def test_the_state_of_the_optimiser_is_stored(tmp_path):
    run = descended("AdamW and a schedule", 100)
    state = ut.Trajectory.load(run.save(tmp_path / "run.zarr")).optimiser_state
    assert sorted(state) == ["m", "v"]
    assert state["v"]["w"].shape == (5, 2, 3)
    jax.tree.map(np.testing.assert_array_equal, state, run.optimiser_state)


def test_an_optimiser_is_given_again_where_it_cannot_be_stored(tmp_path):
    path = descended("optax", 100).save(tmp_path / "run.zarr")
    with pytest.raises(TypeError, match=r"an optax transformation, which cannot be stored; give it again"):
        ut.Trajectory.load(path, noise=NOISE)
    read = ut.Trajectory.load(path)
    assert_same(read, descended("optax", 100))
    with pytest.raises(TypeError, match="a run made by `descend` cannot be continued"):
        read.resume(steps=1)
    path = descended("AdamW and a schedule", 100).save(tmp_path / "other.zarr")
    with pytest.raises(TypeError, match=r"the run has the optimiser AdamW, which is stored; leave `optimiser` out"):
        ut.Trajectory.load(path, noise=NOISE, step_size=SCHEDULE, optimiser=ut.Adam())


def test_a_run_that_is_cut_inside_an_average_continues_as_in_memory(tmp_path):
    run = ut.descend(NOISE, start, step_size=0.05, steps=150, key=5, seeds=3, every=100, average=AVERAGE)
    loaded = ut.Trajectory.load(run.save(tmp_path / "run.zarr"), noise=NOISE, average=AVERAGE)
    assert_same(loaded.resume(steps=150), run.resume(steps=150))


def test_a_run_of_diffuse_continues_with_the_same_bits(tmp_path):
    run = lambda time: ut.diffuse(NOISE, start, step_size=0.05, time=time, key=5, seeds=3, weight_decay=0.1,
                                  observe=OBSERVE, every=20, substeps=3)  # fmt: skip
    path = run(5.0).save(tmp_path / "run.zarr")
    loaded = ut.Trajectory.load(path, noise=NOISE, observe=OBSERVE)
    assert_same(loaded.resume(time=10.0), run(15.0))


def test_a_run_of_the_sde_of_adam_continues_with_the_same_bits(tmp_path):
    run = lambda time: ut.diffuse(NOISE, start, step_size=0.05, time=time, key=5, seeds=3, substeps=3,
                                  optimiser=ut.AdamW(b2=0.9, weight_decay=0.1))  # fmt: skip
    path = run(5.0).save(tmp_path / "run.zarr")
    loaded = ut.Trajectory.load(path, noise=NOISE)
    longer, whole = loaded.resume(time=10.0), run(15.0)
    jax.tree.map(np.testing.assert_array_equal, longer.params, whole.params)
    jax.tree.map(np.testing.assert_array_equal, longer.optimiser_state, whole.optimiser_state)


PROCESS = """
import sys
import jax, jax.numpy as jnp, numpy as np
from tests.execution import test_runs as here

name, path, out = sys.argv[1:]
run = here.ut.Trajectory.load(path, noise=here.NOISE, **here.functions(name))
run.resume(steps=1300).save(out)
"""


@pytest.mark.parametrize("name", ["momentum and decay", "schedule"])
def test_a_run_continues_in_another_process(name, tmp_path):
    path = descended(name, 1100).save(tmp_path / "run.zarr")
    subprocess.run([sys.executable, "-c", PROCESS, name, path, tmp_path / "longer.zarr"], check=True, cwd=Path.cwd())
    assert_same(ut.Trajectory.load(tmp_path / "longer.zarr"), descended(name, 2400))


def test_a_run_can_be_saved_and_loaded_repeatedly(tmp_path):
    """Also where it was loaded without its noise in between."""
    path = descended("plain", 1100).save(tmp_path / "a.zarr")
    ut.Trajectory.load(path).save(tmp_path / "b.zarr")
    ut.Trajectory.load(tmp_path / "b.zarr", noise=NOISE).resume(steps=300).save(path)
    assert_same(ut.Trajectory.load(path, noise=NOISE).resume(steps=1000), descended("plain", 2400))


class Pair(NamedTuple):
    w: jax.Array
    b: jax.Array


class Model(eqx.Module):
    w: jax.Array
    b: list[jax.Array]
    name: str = eqx.field(static=True)


PARAMS = {
    "array": (jnp.zeros(3), lambda p: p),
    "nested": ({"a": [jnp.zeros(2), (jnp.zeros(1),)], "empty": None}, lambda p: p["a"][0][0] + p["a"][1][0][0]),
    "named tuple": (Pair(jnp.zeros(2), jnp.zeros(())), lambda p: p.w[0] + p.b),
    "module": (Model(jnp.zeros(2), [jnp.zeros(3)], "net"), lambda p: p.w[0] + p.b[0][0]),
    "module in a dict": ({"m": Model(jnp.zeros(2), [jnp.zeros(3)], "net")}, lambda p: p["m"].w[0]),
    "half precision": (jnp.zeros(3, jnp.bfloat16), lambda p: p),
}


@pytest.mark.parametrize("name", PARAMS)
def test_params_of_every_structure_continue(name, tmp_path):
    params, total = PARAMS[name]
    noise = ut.Minibatch(ut.Problem(lambda p, x: jnp.sum((total(p) - x) ** 2), DATA[:, 0]), 1)
    observe = {"all": lambda p: p, "one": lambda p: jnp.sum(total(p))}
    run = lambda steps: ut.descend(noise, params, step_size=0.01, steps=steps, key=1, seeds=2, momentum=0.5, every=2,
                                   observe=observe, average={"mean": lambda p: p})  # fmt: skip
    path = run(6).save(tmp_path / "run.zarr")
    needs_like = any(word in name for word in ("module", "named"))
    given = {"noise": noise, "observe": observe, "average": {"mean": lambda p: p}}
    if needs_like:
        with pytest.raises(TypeError, match="give `like=params`"):
            ut.Trajectory.load(path, **given)
        given["like"] = params
        assert_same(ut.Trajectory.load(path, **{**given, "noise": None}), run(6))
    assert_same(ut.Trajectory.load(path, **given).resume(steps=4), run(10))


def test_params_of_another_structure_are_refused(tmp_path):
    params, total = PARAMS["module"]
    noise = ut.Minibatch(ut.Problem(lambda p, x: jnp.sum((total(p) - x) ** 2), DATA[:, 0]), 1)
    path = ut.descend(noise, params, step_size=0.01, steps=5, key=1).save(tmp_path / "run.zarr")
    with pytest.raises(ValueError, match=r"Model of 2 arrays, and the given structure is a .*Pair of 2"):
        ut.Trajectory.load(path, like=PARAMS["named tuple"][0])
    with pytest.raises(ValueError, match=r"the given structure is a .*Model of 3"):
        ut.Trajectory.load(path, like=Model(jnp.zeros(2), [jnp.zeros(3)] * 2, "net"))


def test_double_precision_must_be_the_same(tmp_path):
    path = descended("one run", 20).save(tmp_path / "single.zarr")
    with jax.enable_x64(True):
        with pytest.raises(ValueError, match=r"call `jax.config.update\('jax_enable_x64', False\)` first"):
            ut.Trajectory.load(path, noise=NOISE)
        noise = ut.Minibatch(ut.Problem(lambda p, x: jnp.sum((p - x) ** 2), np.linspace(0, 1, 5)), 1)
        run = ut.descend(noise, jnp.zeros(3), step_size=0.1, steps=20, key=0)
        double = run.save(tmp_path / "double.zarr")
        assert_same(ut.Trajectory.load(double, noise=noise).resume(steps=5), run.resume(steps=5))
    read = ut.Trajectory.load(double)
    assert read.params.dtype == np.float64
    np.testing.assert_array_equal(read.params, run.params)
    with pytest.raises(ValueError, match="'jax_enable_x64', True"):
        ut.Trajectory.load(double, noise=noise)


def test_diverged_runs_keep_their_marks(tmp_path):
    cubic = ut.Minibatch(ut.Problem(lambda w, x: -(w**3) / 3 + x, jnp.zeros(2)), 1)
    init = lambda key: jax.random.uniform(key, (), minval=-1.0, maxval=1.0)
    observe = {"w": lambda w: w, "sign": lambda w: w > 0}
    run = lambda steps: ut.descend(cubic, init, step_size=0.5, steps=steps, key=3, seeds=9, observe=observe, every=10)
    path = run(40).save(tmp_path / "run.zarr")
    assert run(40).diverged.any()
    assert_same(ut.Trajectory.load(path), run(40))
    assert_same(ut.Trajectory.load(path, noise=cubic, observe=observe).resume(steps=40), run(80))


def test_predictions_and_regimes_are_saved(tmp_path):
    noise = ut.LabelNoise(ut.Regression(lambda w, x: w["a"] * w["b"] * x, jnp.ones(3), jnp.ones(3)), 0.5, 1)
    run = ut.Limit(noise).solve({"a": jnp.array(2.0), "b": jnp.array(0.5)}, slow_time=0.1)
    regime = Regime((SmallParameter("eta", 0.1, 0.2, "step"),), 0.03, ("A note.",))
    path = ut.Trajectory(**{**vars(run), "regime": regime}).save(tmp_path / "limit.zarr")
    assert ut.Trajectory.load(path).regime == regime
    assert str(ut.Trajectory.load(path)) == f"{replace(run, regime=None)}\n{regime}"
    with pytest.raises(TypeError, match=r"made by `Limit.solve` cannot be continued; load it without `noise`"):
        ut.Trajectory.load(path, noise=noise)


def test_xarray_reads_a_saved_run(tmp_path):
    run = descended("momentum and decay", 300)
    with xarray.open_zarr(run.save(tmp_path / "run.zarr")) as data:
        assert data["b"].dims == ("seed", "step", "b[0]")
        np.testing.assert_array_equal(data["b"], run.observed["b"])
        np.testing.assert_array_equal(data["params.w"], run.params["w"])
        np.testing.assert_array_equal(data["time"], run.time)


def test_any_name_of_an_observable_is_kept(tmp_path):
    names = ["a/b", "../up", "A", "a", ".zattrs", "seed", "step", "time", "params", "params.w", "state.momentum",
             "é", "diverged", "a~1", "x\ny"]  # fmt: skip
    observe = {name: lambda p, k=k: k + p["b"][0] for k, name in enumerate(names)}
    run = ut.descend(NOISE, start, step_size=0.05, steps=4, key=5, seeds=2, observe=observe)
    assert_same(ut.Trajectory.load(run.save(tmp_path / "run.zarr")), run)
    assert [p.name for p in tmp_path.iterdir()] == ["run.zarr"]


def test_selected_observations_are_saved_and_the_whole_run_continues(tmp_path):
    run = descended("momentum and decay", 300).select([0, -1])
    path = run.save(tmp_path / "run.zarr")
    assert_same(ut.Trajectory.load(path), run)
    loaded = ut.Trajectory.load(path, noise=NOISE, observe=OBSERVE)
    assert_same(loaded.resume(steps=100), descended("momentum and decay", 400))


def other_loss(p, x):
    return loss(p, x) + 1


OTHERS = {
    "other data": ({"noise": ut.Minibatch(ut.Problem(loss, DATA + 1), 2)}, ValueError, "noise.problem.data"),
    "other batches": ({"noise": ut.Minibatch(ut.Problem(loss, DATA), 3)}, ValueError, "noise.batch_size"),
    "other type": ({"noise": ut.Isotropic(ut.Problem(loss, DATA), 0.1)}, ValueError, "`noise` is not that of the run"),
    "other loss": ({"noise": ut.Minibatch(ut.Problem(other_loss, DATA), 2)}, ValueError, "noise.problem.function"),
    "other observable": ({"observe": {**OBSERVE, "b": lambda p: -p["b"]}}, ValueError, "observe\\['b'\\]"),
    "no observables": ({"observe": None}, ValueError, "'b' is missing; give the functions of the run again"),
    "an observable too many": ({"observe": {**OBSERVE, "c": OBSERVE["b"]}}, ValueError, "the run has no 'c'"),
    "no averages": ({"average": None}, ValueError, "average=...\\)`: 'mean' is missing"),
    "no schedule": ({"step_size": None}, TypeError, "is a schedule, which cannot be stored; give the function again"),
    "other schedule": ({"step_size": optax.cosine_decay_schedule(0.1, 3001)}, ValueError, "the schedule sums to"),
    "a number": ({"noise": 3}, TypeError, "`noise` is an int; give the noise of the run"),
    "a problem": ({"noise": ut.Problem(loss, DATA)}, TypeError, "`noise` is a Problem"),
    "a schedule only": ({"noise": None}, TypeError, "a schedule continues a run; give `noise=` too"),
    "observables as a list": ({"observe": [1]}, TypeError, "give a dict of functions"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return descended("schedule", 600).save(tmp_path_factory.mktemp("runs") / "run.zarr")


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", OTHERS)
def test_functions_that_are_not_those_of_the_run_are_refused(name, saved):
    changed, error, message = OTHERS[name]
    with pytest.raises(error, match=message):
        ut.Trajectory.load(saved, **{"noise": NOISE, **functions("schedule"), **changed})


def test_a_step_size_that_is_stored_is_not_given_again(tmp_path):
    path = descended("plain", 20).save(tmp_path / "run.zarr")
    with pytest.raises(TypeError, match=r"constant step size 0.05, which is stored; leave `step_size` out"):
        ut.Trajectory.load(path, noise=NOISE, step_size=SCHEDULE)


def test_resuming_without_the_noise_says_what_to_give(saved):
    with pytest.raises(TypeError, match=r"load\(path, noise=..., observe=..., average=..., step_size=...\)"):
        ut.Trajectory.load(saved).resume(steps=3)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = descended("one run", 20).save(tmp_path / "run.zarr")
    with pytest.raises(StoreError, match="there is no stored result here"):
        ut.Trajectory.load(tmp_path / "nowhere.zarr")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="not a result of undertow"):
        ut.Trajectory.load(tmp_path / "folder")
    other = store.save(tmp_path / "claim.zarr", xarray.Dataset({"a": ("x", [1.0])}), {})
    with pytest.raises(StoreError, match="not a saved run"):
        ut.Trajectory.load(other)
    for taken in (tmp_path / "folder", other, tmp_path / "folder" / "thesis.tex"):
        with pytest.raises(StoreError, match="something else here, not a saved run; give another path"):
            descended("one run", 20).save(taken)
    assert (tmp_path / "folder" / "thesis.tex").read_text() == "x"
    chunk = next(file for file in path.rglob("*") if file.is_file() and file.name.startswith("0"))
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreError, match="damaged"):
        ut.Trajectory.load(path)


def test_a_failed_save_keeps_the_old_run(tmp_path, monkeypatch):
    """Every file operation of saving fails once; what is on the disk is the old run, whole."""
    old, new = descended("one run", 20), descended("one run", 40)
    path = old.save(tmp_path / "run.zarr")
    for name in ("fsync", "chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, _fail)
            with pytest.raises(KeyboardInterrupt):
                new.save(path)
        assert_same(ut.Trajectory.load(path), old)
        assert [p.name for p in tmp_path.iterdir()] == ["run.zarr"]
    renames = iter(range(10))
    rename = Path.rename
    with monkeypatch.context() as patch:  # killed between the two renames where folders cannot be exchanged
        patch.setattr(store, "_exchange", lambda one, other: False)
        patch.setattr(Path, "rename", lambda self, to: rename(self, to) if next(renames) != 1 else _fail())
        with pytest.raises(KeyboardInterrupt):
            new.save(path)
    assert_same(ut.Trajectory.load(path), old)
    new.save(path)
    assert_same(ut.Trajectory.load(path), new)


def _fail(*_: object) -> None:
    raise KeyboardInterrupt
