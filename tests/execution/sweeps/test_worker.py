"""Workers run the blocks of a sweep: as one program where the experiment traces, else run by run."""

import inspect
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import undertow as ut
from tests.execution.sweeps.functions import brittle, picky, ragged, walk, widening
from undertow.execution.store import StoreError
from undertow.execution.sweeps import blocks, sweep, worker
from undertow.execution.sweeps.records import BlockTask, DescriptionRequest, ExperimentReference
from undertow.execution.sweeps.spec import SpecError, point_words
from undertow.execution.sweeps.worker import describe, work

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
    (failure,) = json.loads((folder / "failures.json").read_text())["failures"].items()
    assert re.fullmatch(r"ArithmeticError: three is too many \(functions.py, line \d+\)", failure[0])
    assert failure[1] == 4
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


def reference(function) -> ExperimentReference:
    return ExperimentReference(function, "", "smoke", in_process=True)


def task(function, columns, seeds, width=None, batched=True) -> BlockTask:
    return BlockTask(reference(function), (0,), 0, columns, seeds, width or len(seeds), batched)


def scaled(key, *, a: float, n: int = 2):
    return {"x": a * jax.random.normal(key, (n,))}


def test_a_block_at_the_edge_is_padded_and_gives_the_same_numbers():
    """One run in a program of four has the numbers of the run one by one."""
    columns = {"a": [0.5], "n": [2]}
    padded = work(task(scaled, columns, [3], width=4))
    alone = work(task(scaled, columns, [3], batched=False))
    assert padded.values["x"].shape == (1, 2)
    np.testing.assert_allclose(padded.values["x"], alone.values["x"], rtol=1e-6)
    expected = 0.5 * jax.random.normal(key_of({"a": 0.5, "n": 2}, 3), (2,))
    np.testing.assert_allclose(padded.values["x"][0], expected, rtol=1e-6)
    assert padded.errors == alone.errors == {}


def test_results_are_in_double_precision_and_have_their_cost():
    result = work(
        task(lambda key, *, a: {"flag": a > 1, "count": np.int32(3)}, {"a": [0.5, 1.5]}, [0, 0], batched=False)
    )
    assert result.values["flag"].tolist() == [0.0, 1.0]
    assert {value.dtype for value in result.values.values()} == {np.dtype(float)}
    assert 0 <= result.run_seconds <= result.seconds
    assert result.worker.rpartition(":")[2].isdigit()


def test_a_block_that_compiles_nothing_has_its_cost(monkeypatch):
    """Also where the process has compiled all programs before."""
    monkeypatch.setattr(worker, "_prepare", lambda in_process: [])
    result = work(task(scaled, {"a": [2.0], "n": [2]}, [0]))
    assert (result.compilations, result.compile_seconds) == (0, 0.0)
    assert isinstance(result.compile_seconds, float)


def raising(key, *, a: float):
    raise ArithmeticError("größe\nmore")


def test_a_block_in_which_every_run_raises_has_messages_and_no_values():
    for batched in (True, False):
        result = work(task(raising, {"a": [1.0, 2.0]}, [0, 1], batched=batched))
        assert result.values == {}
        line = inspect.getsourcelines(raising)[1] + 1
        assert result.errors == dict.fromkeys((0, 1), f"ArithmeticError: größe (test_worker.py, line {line})")


def full_disk(key, *, a: float):
    raise StoreError("the disk is full")


def imaginary(key, *, a: float):
    return {"x": a * 1j}


@pytest.mark.parametrize("batched", [True, False])
def test_errors_of_the_store_and_of_the_specification_end_the_sweep(batched):
    """They are not failures of one run."""
    with pytest.raises(StoreError, match="the disk is full"):
        work(task(full_disk, {"a": [1.0]}, [0], batched=batched))
    with pytest.raises(SpecError, match="outputs must be real numbers or flags; one has the dtype complex"):
        work(task(imaginary, {"a": [1.0]}, [0], batched=batched))


def test_outputs_of_text_are_reported():
    with pytest.raises(SpecError, match="outputs must be real numbers or flags"):
        work(task(lambda key, *, a: {"x": "größe"}, {"a": [1.0]}, [0], batched=False))


def test_runs_with_other_outputs_than_the_first_fail():
    function = lambda key, *, n: {"x": np.zeros(2)} if n < 2 else {"y": np.zeros(2)}
    result = work(task(function, {"n": [1, 2]}, [0, 0], batched=False))
    assert list(result.values) == ["x"]
    assert np.isnan(result.values["x"][1]).all()
    assert result.errors == {1: "its outputs have shapes {'y': (2,)}, unlike those of other points"}


def test_an_experiment_that_traces_is_described_by_its_trace():
    description = describe(DescriptionRequest(reference(walk), 0, {"step_size": 1.0, "steps": 20}))
    assert (description.batched, description.why) == (True, "")
    assert description.ranks == {"end": 0, "path": 1, "high": 0}
    assert description.needed == ("step_size",)
    assert 20 * 4 < description.run_bytes < 2**20
    assert (description.platform, description.device) == ("cpu", "cpu")
    assert description.memory > 0


def test_an_experiment_that_does_not_trace_is_described_with_the_reason():
    description = describe(DescriptionRequest(reference(picky), 0, {"n": 1, "scale": 1.0}))
    assert not description.batched
    assert description.why == "it does not trace (TracerBoolConversionError)"
    assert (description.ranks, description.run_bytes) == ({}, 0)


def test_wrong_parameters_of_the_first_point_are_reported():
    with pytest.raises(SpecError, match="the parameter step_size has no value"):
        describe(DescriptionRequest(reference(walk), 0, {}))


def test_another_version_of_the_file_is_not_run():
    other = ExperimentReference(f"{FILE}:walk", "another digest", "smoke", in_process=True)
    with pytest.raises(SpecError, match=r"functions.py: the file on the worker is not the one the sweep began with"):
        describe(DescriptionRequest(other, 0, {"step_size": 1.0}))
