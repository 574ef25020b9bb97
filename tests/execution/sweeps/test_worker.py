"""Workers run the blocks of a sweep: as one program where the experiment traces, else run by run."""

import json
from pathlib import Path

import jax
import numpy as np

import undertow as ut
from tests.execution.sweeps.functions import brittle, picky, ragged, walk, widening
from undertow.execution.sweeps import blocks, sweep
from undertow.execution.sweeps.spec import point_words

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
