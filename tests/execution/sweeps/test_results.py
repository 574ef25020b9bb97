"""The folder of a sweep: its files, and one dataset that plain xarray opens."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray

import undertow as ut
from tests.execution.sweeps.functions import walk
from undertow.execution import store
from undertow.execution.sweeps import sweep
from undertow.execution.sweeps.blocks import Tiling
from undertow.execution.sweeps.records import Plan
from undertow.execution.sweeps.results import (
    DONE,
    FAILED,
    FORMAT,
    TO_DO,
    Output,
    Results,
    folder_of,
    read_folder,
    read_plan,
    write_plan,
    write_spec,
)
from undertow.execution.sweeps.spec import as_spec

SPEC = as_spec("own.py:f", {"a": [0.5, 1.5, 2.5], "pair": {"zip": {"b": [1, 2], "wört": ["x", "ß"]}}}, seeds=3)
TILING = Tiling(SPEC.shape, (2, 1, 2))
PLAN = Plan(TILING.tile, True, {}, {"claim": "größe"}, "cpu")
OUTPUTS = {"x": Output((), "<f8", ()), "v": Output((2,), "<f8", ("v_0",))}


def values_of(block):
    """Return outputs whose numbers are those of the runs in the grid, and flags that say that they are done."""
    runs = np.arange(SPEC.runs, dtype=float).reshape(SPEC.shape)[TILING.region(block)].ravel()
    return {"x": runs, "v": np.stack([runs, -runs], axis=1)}, np.full(runs.size, DONE, np.int8)


@pytest.fixture
def folder(tmp_path):
    """The folder of a sweep with its specification, its plan and an empty dataset."""
    write_spec(tmp_path, SPEC, "digest")
    write_plan(tmp_path, PLAN)
    Results.created(tmp_path, SPEC, PLAN, OUTPUTS)
    return tmp_path


def results_of(folder: Path) -> Results:
    results = Results.opened(folder, SPEC)
    assert results is not None
    return results


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


def test_all_blocks_together_are_the_grid(folder):
    results = results_of(folder)
    for block in TILING.blocks():
        results.write(block, *values_of(block))
    data = results.open().load()
    assert data.x.dims == ("a", "pair", "seed")
    assert data.v.dims == ("a", "pair", "seed", "v_0")
    np.testing.assert_array_equal(data.x, np.arange(SPEC.runs).reshape(SPEC.shape))
    np.testing.assert_array_equal(data.v[..., 1], -data.x)
    assert (data.done == DONE).all()
    assert (results.flags() == DONE).all()
    assert data.a.values.tolist() == [0.5, 1.5, 2.5]
    assert data["wört"].values.tolist() == ["x", "ß"]
    assert data.attrs["claim"] == "größe"
    assert json.loads(data.attrs["parameters"]) == {}


def test_a_new_dataset_has_no_values_and_nothing_done(folder):
    data = results_of(folder).open().load()
    assert np.isnan(data.x).all()
    assert np.isnan(data.v).all()
    assert (results_of(folder).flags() == TO_DO).all()


def test_a_block_with_missing_or_truncated_files_is_not_done(folder):
    results = results_of(folder)
    for block in TILING.blocks():
        results.write(block, *values_of(block))
    (folder / "results.zarr" / "x" / "0.0.0").unlink()
    (folder / "results.zarr" / "v" / "0.1.0.0").write_bytes(b"cut")
    (folder / "results.zarr" / "done" / "1.0.0").write_bytes(b"")
    (folder / "results.zarr" / "done" / "1.1.0").unlink()
    unfinished = np.zeros(SPEC.shape, bool)
    for block in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)):
        unfinished[TILING.region(block)] = True
    np.testing.assert_array_equal(results.flags() == TO_DO, unfinished)


def test_runs_that_failed_have_their_flag(folder):
    results = results_of(folder)
    values, flags = values_of((0, 0, 0))
    flags[1] = FAILED
    results.write((0, 0, 0), values, flags)
    assert results.flags()[:2, 0, :2].tolist() == [[DONE, FAILED], [DONE, DONE]]


def test_a_block_that_fails_keeps_its_finished_runs(folder):
    results = results_of(folder)
    block = (1, 1, 1)  # at the edge of the grid: one run, where a whole block has four
    assert results.fail(block).tolist() == [[[FAILED]]]
    results.write(block, *values_of(block))
    assert results.fail(block).tolist() == [[[DONE]]]
    values, flags = values_of((0, 0, 0))
    flags[1] = FAILED
    results.write((0, 0, 0), values, flags)
    assert results.fail((0, 0, 0)).ravel().tolist() == [DONE, FAILED, DONE, DONE]
    data = results.open().load()
    assert np.isnan(data.x[0, 0, 1])
    assert np.isnan(data.v[0, 0, 1]).all()
    assert data.x[1, 0, :2].values.tolist() == [6.0, 7.0]
    assert data.x[2, 1, 2] == SPEC.runs - 1


def test_a_block_without_values_leaves_no_old_numbers(folder):
    """A driver was killed after it wrote the values and before it wrote the flags."""
    results = results_of(folder)
    results.write((0, 0, 0), *values_of((0, 0, 0)))
    (folder / "results.zarr" / "done" / "0.0.0").unlink()
    assert (results.fail((0, 0, 0)) == FAILED).all()
    assert np.isnan(results.open().x[:2, 0, :2]).all()


def test_temporary_files_of_a_killed_driver_are_removed(folder):
    results = results_of(folder)
    results.write((0, 0, 0), *values_of((0, 0, 0)))
    before = set(folder.rglob("*"))
    for stray in ("x/.0.0.0.abc", "v/.1.0.0.0.abc", "done/.1.0.0.abc", ".zattrs.abc"):
        (folder / "results.zarr" / f"{stray}.partial").write_bytes(b"half")
    results.repair()
    assert set(folder.rglob("*")) == before


def test_a_write_that_fails_leaves_no_temporary_file(folder, monkeypatch):
    results = results_of(folder)
    before = set(folder.rglob("*"))

    def full(name):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("undertow.execution.sweeps.results._flush_written", full)
    with pytest.raises(store.StoreError, match="the disk is full"):
        results.write((0, 0, 0), *values_of((0, 0, 0)))
    assert set(folder.rglob("*")) == before
    assert (results.flags() == TO_DO).all()


def test_an_output_without_numbers_can_be_stored(tmp_path):
    results = Results.created(tmp_path, SPEC, PLAN, {"none": Output((0,), "<f8", ("none_0",))})
    flags = np.full(4, DONE, np.int8)
    results.write((0, 0, 0), {"none": np.zeros((4, 0))}, flags)
    assert results.open().none.shape == (*SPEC.shape, 0)
    assert (results.flags() == DONE).sum() == 4


def test_a_folder_is_read_as_it_was_written(folder):
    spec, results = read_folder(folder)
    assert spec == SPEC
    assert read_plan(folder) == PLAN
    assert results is not None
    assert (results.outputs, results.tiling) == (OUTPUTS, TILING)


def test_a_sweep_that_has_not_started_has_neither_plan_nor_results(tmp_path):
    write_spec(tmp_path, SPEC, "digest")
    assert read_folder(tmp_path) == (SPEC, None)
    write_plan(tmp_path, PLAN)
    assert read_folder(tmp_path) == (SPEC, None)


def damage(path, content):
    """Replace a file by other content, or remove it."""
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


DAMAGED = ["", "[]", "3", '"text"', "{}", '{"undertow_format": "x"}', b"\xff"]


@pytest.mark.parametrize("content", [*DAMAGED, '{"undertow_format": 2, "axes": [{"name": "a", "values": [1]}]}', None])
def test_a_damaged_specification_is_reported(folder, content):
    damage(folder / "sweep.json", content)
    with pytest.raises(store.StoreError, match=r"there is no sweep here \(no readable sweep.json\)"):
        read_folder(folder)


def test_a_sweep_of_a_newer_version_is_reported(folder):
    stored = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(stored | {"undertow_format": FORMAT + 1}))
    with pytest.raises(store.NewerFormatError, match="written by a newer undertow"):
        read_folder(folder)


def test_a_sweep_of_an_older_version_is_reported(folder):
    stored = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(stored | {"undertow_format": FORMAT - 1}))
    with pytest.raises(store.StoreError, match="written by an older undertow, without checksums"):
        read_folder(folder)


@pytest.mark.parametrize("content", [*DAMAGED, '{"tile": [0]}', None])
def test_a_damaged_plan_is_read_from_the_dataset(folder, content):
    damage(folder / "plan.json", content)
    assert read_plan(folder) is None
    _, results = read_folder(folder)
    assert results is not None
    assert results.plan == PLAN
    write_plan(folder, results.plan)
    assert read_plan(folder) == PLAN


def test_every_flipped_byte_of_the_dataset_is_found_and_repaired(folder):
    """Every file, every byte: found by `inspect`, and after `repair` the dataset misses one block or nothing."""
    results = results_of(folder)
    for block in TILING.blocks():
        results.write(block, *values_of(block))
    files = sorted(path for path in (folder / "results.zarr").rglob("*") if path.is_file())
    before = {path: path.read_bytes() for path in files}
    for path, content in before.items():
        chunk = path.parent.name in ("x", "v", "done") and path.name[0] != "."
        for index in range(0, len(content), 1 if chunk else 41):
            flipped = bytearray(content)
            flipped[index] ^= 1 << index % 8
            path.write_bytes(flipped)
            flags, damaged = results.inspect()
            assert damaged == [str(path.relative_to(results.path))]
            assert (flags == TO_DO).any() == chunk
        results_of(folder).repair()
        assert results.inspect()[1] == []
        if chunk:
            block = tuple(map(int, path.name.split(".")[:3]))
            assert (results.flags()[TILING.region(block)] == TO_DO).all()
            results.write(block, *values_of(block))
        assert path.read_bytes() == content
    assert {path: path.read_bytes() for path in files} == before
    assert sorted(path for path in (folder / "results.zarr").rglob("*") if path.is_file()) == files


def test_other_readers_check_the_chunks(folder):
    results = results_of(folder)
    results.write((0, 0, 0), *values_of((0, 0, 0)))
    chunk = folder / "results.zarr" / "x" / "0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"!")
    with pytest.raises(RuntimeError, match="checksum"):
        results.open().x.load()


@pytest.mark.parametrize("second", ["plan.json", "results.zarr/.zattrs"])
def test_a_dataset_damaged_twice_is_reported(folder, second):
    (folder / "results.zarr" / store.SEAL).write_bytes(b"{}")
    assert results_of(folder).inspect()[1] == [store.SEAL]
    content = (folder / second).read_text()
    (folder / second).write_text(content.replace("2", "3"))
    with pytest.raises(store.StoreError, match=r"results.zarr: damaged, it cannot be read; delete .* and run again"):
        results_of(folder).repair()


def test_the_folder_depends_on_what_determines_the_results_alone():
    here = lambda **more: folder_of(replace(SPEC, **more), "digest", Path("out"))
    assert here().name.startswith("f-")
    for more in ({"show": "x"}, {"time_limit": 3.0}, {"experiment": "/elsewhere/own.py:f"}):
        assert here(**more) == here()
    for more in ({"seeds": 4}, {"seed": 1}, {"scale": "full"}, {"parameters": {"c": 1}}, {"experiment": "own.py:g"}):
        assert here(**more) != here()
    assert folder_of(SPEC, "other", Path("out")) != here()
    assert here(experiment="<lambda>").name.startswith("lambda-")
