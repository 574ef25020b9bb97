"""Means over runs: against NumPy and SciPy, with runs that end early."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from undertow.series import named_leaves, series_of, table_row

RNG = np.random.default_rng(0)


def test_mean_error_and_interval_are_those_of_scipy():
    values = RNG.normal(size=(7, 4)) + np.arange(4)
    series = series_of({"x": values}, np.ones((7, 4), bool))["x"]
    low, high = series.interval(0.9)
    for k in range(4):
        column = values[:, k]
        np.testing.assert_allclose(series.mean[k], column.mean())
        np.testing.assert_allclose(series.standard_error[k], stats.sem(column))
        expected = stats.t.interval(0.9, 6, loc=column.mean(), scale=stats.sem(column))
        np.testing.assert_allclose([low[k], high[k]], expected)


def test_runs_are_left_out_from_their_end_on():
    values, alive = RNG.normal(size=(5, 6)), np.arange(6)[None] < np.array([6, 1, 3, 6, 3])[:, None]
    alive[[0, 3], 5] = False
    values[~alive] = np.nan
    series = series_of({"x": values}, alive)["x"]
    assert series.runs.tolist() == [5, 4, 4, 2, 2, 0]
    np.testing.assert_allclose(series.mean[:5], np.nanmean(values[:, :5], axis=0))
    np.testing.assert_allclose(series.standard_error[:5], stats.sem(values[:, :5], axis=0, nan_policy="omit"))
    assert np.isnan(series.mean[5])
    assert np.isnan(series.interval()).T[5].all()


def test_a_value_that_is_not_a_number_is_not_hidden():
    """Only divergence removes a run; an observable that is NaN for another reason shows."""
    values = np.array([[1.0, np.nan], [3.0, 4.0]])
    assert np.isnan(series_of({"x": values}, np.ones((2, 2), bool))["x"].mean).tolist() == [False, True]


def test_one_run_has_no_error():
    series = series_of({"x": np.arange(3.0)}, np.array([True, True, False]))["x"]
    np.testing.assert_array_equal(series.mean, [0.0, 1.0, np.nan])
    assert np.isnan(series.standard_error).all()
    assert np.isnan(series.interval()).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32, np.int32, bool])
def test_all_real_types_have_a_mean(dtype):
    values = np.array([[0, 1], [1, 1], [1, 0], [0, 0]]).astype(dtype)
    series = series_of({"x": values, "c": values.astype(complex), "v": np.stack([values] * 2, -1)}, values == values)
    assert list(series) == ["x"]
    np.testing.assert_array_equal(series["x"].mean, [0.5, 0.5])
    np.testing.assert_allclose(series["x"].standard_error, stats.sem([0.0, 0, 1, 1]))


def test_rows_show_numbers_or_a_shape():
    alive = np.ones((4, 2), bool)
    observed = {"x": np.array([[1.0, 2.0]] * 4), "v": {"a": np.zeros((4, 2, 3))}}
    leaves, series = named_leaves(observed), series_of(observed, alive)
    assert table_row("x", leaves["x"], series["x"], 4) == ("x", "1", "2", "0")
    assert table_row("v.a", leaves["v.a"], series.get("v.a"), 4) == ("v.a", "", "", "shape (4, 2, 3)")
