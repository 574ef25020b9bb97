"""Experiments are found by name, and their parameters are checked."""

import json

import jax
import numpy as np
import pytest
import xarray

from undertow.execution.sweeps import drive, sweep
from undertow.execution.sweeps.experiments import fitted
from undertow.execution.sweeps.spec import SpecError, as_spec
from undertow.execution.workers import InProcess


def test_values_fit_their_parameters():
    kinds = {"eta": "float", "n": "int", "flag": "bool", "word": "str"}
    assert fitted(kinds, (), {"eta": 1, "n": 2.0}) == {"eta": 1.0, "n": 2}
    for given, sentence in (
        ({"n": 2.5}, "a whole number"), ({"eta": "a"}, "a number"), ({"flag": 1}, "true or false"),
        ({"word": 1}, "text"), ({"etta": 1}, "did you mean eta"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=sentence):
            fitted(kinds, (), given)
    with pytest.raises(SpecError, match="no value and no default"):
        fitted(kinds, ("n",), {"eta": 1.0})


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
