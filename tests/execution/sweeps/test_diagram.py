"""Phase diagrams: when they can be drawn, their fixed parameters, and the means that they show."""

import json

import numpy as np
import pytest
import xarray

from undertow.execution.sweeps.diagram import Diagram, fixed, means

DIAGRAM = Diagram("d", lambda key: {}, lambda points: {}, points=2, seeds=1, shown=("x", "y"), draw=lambda data: None)


def dataset(x=(2.0, 1.0), y=(10.0, 20.0, 30.0), done=1, **attributes):
    """Return a dataset with value = x + y + seed for two seeds; x is in decreasing order."""
    values = np.add.outer(np.add.outer(np.asarray(x), np.asarray(y)), [0.0, 1.0])
    dimensions = ("x", "y", "seed")
    arrays = {"value": (dimensions, values), "done": (dimensions, np.full(values.shape, done, "i1"))}
    return xarray.Dataset(arrays, {"x": list(x), "y": list(y)}, attributes)


@pytest.mark.parametrize(
    ("data", "drawable"),
    [
        (dataset(), True),
        (dataset(x=(1.0,)), False),
        (dataset(y=(1.0,)), False),
        (dataset(done=0), False),
        (dataset(done=2), False),
        (dataset().rename(x="z"), False),
    ],
)
def test_a_diagram_needs_both_axes_and_a_finished_run(data, drawable):
    assert DIAGRAM.drawable(data) is drawable


def test_one_finished_run_is_enough():
    data = dataset(done=2)
    data.done[1, 2, 0] = 1
    assert DIAGRAM.drawable(data)


def test_means_are_over_the_seeds_in_increasing_order():
    shown = means(dataset(), "value", "x", "y")
    assert shown.dims == ("y", "x")
    assert shown.x.values.tolist() == [1.0, 2.0]
    np.testing.assert_allclose(shown, np.add.outer([10.0, 20.0, 30.0], [1.0, 2.0]) + 0.5)


def test_means_leave_out_missing_seeds_and_average_over_other_axes():
    data = dataset()
    data.value[0, 0, 1] = np.nan
    data.value[1, 1] = np.nan
    shown = means(data, "value", "x", "y")
    assert shown.sel(x=2.0, y=10.0) == 12.0  # the first seed alone
    assert np.isnan(shown.sel(x=1.0, y=20.0))
    other = xarray.concat([dataset(), dataset() + 2.0], "other")
    np.testing.assert_allclose(means(other, "value", "x", "y"), means(dataset(), "value", "x", "y") + 1.0)


def test_a_fixed_parameter_is_read_from_the_dataset_or_has_its_usual_value():
    data = dataset(parameters=json.dumps({"steps": 7, "größe": 0.5}))
    assert fixed(data, "steps", 100) == 7
    assert fixed(data, "größe", 0.0) == 0.5
    assert fixed(data, "alpha", 0.1) == 0.1
    assert fixed(dataset(), "steps", 100) == 100
