"""Conversion of runs to xarray."""

import jax
import numpy as np

import undertow as ut
from tests.kinds import params, problem
from undertow import _trees as trees

NOISE = ut.Minibatch(problem(), 2)
KEY = jax.random.key(7)


def test_a_dataset_has_the_values_and_metadata_of_a_run():
    run = ut.descend(
        NOISE, params(), step_size=0.02, steps=2500, key=KEY, every=500, seeds=3,
        observe={"flat": trees.ravel, "tree": lambda p: p},
    )  # fmt: skip
    data = run.to_xarray()
    assert data["flat"].dims == ("seed", "step", "flat_0")
    assert data["tree.inner"].shape == (3, 6, 2, 3)
    assert data["params.outer"].dims == ("seed", "params.outer_0")
    np.testing.assert_allclose(data.time, data.step * 0.02)
    np.testing.assert_allclose(data.slow_time, data.step * 0.0004)
    assert float(data["flat"].sel(seed=1, step=1000)[0]) == run.observed["flat"][1, 2, 0]
    assert data.attrs["step_size"] == 0.02
    assert data.attrs["steps"] == 2500
    single = ut.descend(NOISE, params(), step_size=0.02, steps=10, key=KEY, observe={"flat": trees.ravel}).to_xarray()
    assert single["flat"].dims == ("step", "flat_0")
    part = run.select([0, -1])
    assert part.observed["flat"].shape == (3, 2, 8)
    assert part.step.tolist() == [0, 2500]


def test_no_observable_is_lost_in_xarray():
    """Names reserved by the dataset, names with dots, and names of dimensions."""
    names = ["params", "params.inner", "diverged", "diverged_at", "step", "time", "slow_time", "seed", "flat", "flat_0"]
    observe = {name: lambda p, i=i: i + trees.ravel(p)[0] for i, name in enumerate(names)}
    observe |= {"flat": trees.ravel, "tree": lambda p: {"leaf": 50 + p["inner"][0, 0]}}
    observe["tree.leaf"] = lambda p: 60 + p["inner"][0, 0]
    run = ut.descend(NOISE, params(), step_size=0.02, steps=4, key=KEY, every=2, seeds=3, observe=observe)
    for seeds, data in ((3, run.to_xarray()), (None, _alone(observe).to_xarray())):
        lead = () if seeds is None else ("seed",)
        recorded = [v.values for v in data.data_vars.values() if v.dims == (*lead, "step")]
        offsets = sorted(round(float(np.ravel(v)[0] - np.ravel(run.observed["params"])[0])) for v in recorded)
        assert offsets == sorted({*range(len(names)), 50, 60} - {names.index("flat")})
        assert data["flat"].dims == (*lead, "step", "flat_0")
        assert data["params.inner"].dims == (*lead, "params.inner_0", "params.inner_1")
        assert data["diverged"].dtype == bool
        np.testing.assert_array_equal(data.time, data.step * 0.02)
        assert "observed.params" in data
        assert "observed.diverged" in data


def _alone(observe):
    return ut.descend(NOISE, params(), step_size=0.02, steps=4, key=KEY, every=2, observe=observe)
