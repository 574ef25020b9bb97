"""The folder of a sweep: its files, and one dataset that plain xarray opens."""

import warnings
from pathlib import Path

import numpy as np
import xarray

import undertow as ut
from tests.execution.sweeps.functions import walk
from undertow.execution.sweeps import sweep


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
