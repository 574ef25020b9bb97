"""Pictures as JSON: short numbers, no NaN, and means with their standard errors."""

import json

import numpy as np

from undertow.explore.picture import Axis, Panel, Picture, Row, Series, runs_and_mean


def test_json_has_four_digits_and_null_for_what_is_not_finite():
    series = Series("line", "flow", "red", np.array([0.0, 1.0]), np.array([1.23456789, np.nan]))
    picture = Picture((Panel("t", Axis("x"), Axis("y", log=True, low=0.1), (series,)),), (Row("r", np.inf, 2.0),))
    shown = json.loads(json.dumps(picture.to_json(), allow_nan=False))
    (panel,) = shown["panels"]
    assert panel["series"] == [{"kind": "line", "label": "flow", "colour": "red", "x": [0, 1], "y": [1.235, None]}]
    assert panel["y"] == {"label": "y", "log": True, "low": 0.1, "high": None}
    assert shown["rows"] == [["r", None, 2, None]]


def test_the_mean_is_that_of_all_runs_with_two_standard_errors():
    runs = np.random.default_rng(0).normal(size=(100, 3))
    cloud, mean = runs_and_mean("SGD", np.arange(3.0), runs)
    assert len(cloud.y) < 100
    np.testing.assert_allclose(mean.y, runs.mean(axis=0))
    np.testing.assert_allclose(mean.error, 2 * runs.std(axis=0, ddof=1) / 10)


def test_one_run_has_no_interval():
    _, mean = runs_and_mean("SGD", np.arange(3.0), np.ones((1, 3)))
    assert mean.label == "SGD, one run"
    assert not mean.error.any()
