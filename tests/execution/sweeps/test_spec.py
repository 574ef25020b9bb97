"""A specification is worked out, or refused with a sentence, before anything runs."""

import json
import math

import numpy as np
import pytest

from undertow.execution.sweeps.spec import SpecError, as_spec, check_outputs, point_words, read_spec


def values(given, seed=0):
    (axis,) = as_spec("f.py:f", {"x": given}, seed=seed).axes
    return axis.values


def test_ranges():
    np.testing.assert_allclose(values({"linear": [0.1, 0.7, 4]})["x"], [0.1, 0.3, 0.5, 0.7], rtol=1e-14)
    assert values({"linear": [10, 50, 5]})["x"] == (10, 20, 30, 40, 50)
    logs = np.log(values({"log": [1e-3, 10.0, 5]})["x"])
    np.testing.assert_allclose(np.diff(logs), math.log(1e4) / 4, rtol=1e-12)
    assert values(np.array([1.5, 2.5]))["x"] == (1.5, 2.5)


def test_zip_and_random():
    together = values({"zip": {"a": [1, 2, 3], "b": {"log": [1.0, 100.0, 3]}}})
    assert together == {"a": (1, 2, 3), "b": (1.0, 10.0, 100.0)}
    given = {"random": {"a": {"log": [1e-4, 1.0]}, "b": {"linear": [-1, 1]}}, "count": 4000}
    drawn = values(given)
    assert drawn == values(given)
    assert drawn != values(given, seed=1)
    for column, low, high in ((np.log(drawn["a"]), math.log(1e-4), 0.0), (np.array(drawn["b"]), -1.0, 1.0)):
        assert low <= column.min() < column.max() <= high
        # the mean of a uniform law, within four standard errors
        assert abs(column.mean() - (low + high) / 2) < 4 * (high - low) / math.sqrt(12 * 4000)


def test_the_grid_is_the_product_of_its_axes():
    spec = as_spec("f.py:f", {"a": [1, 2], "pair": {"zip": {"b": [3, 4, 5], "c": ["u", "v", "w"]}}}, {"e": 7}, seeds=4)
    assert spec.shape == (2, 3, 4)
    assert spec.points == 6
    assert spec.point((1, 2)) == {"a": 2, "b": 5, "c": "w", "e": 7}


@pytest.mark.parametrize(
    ("axes", "more", "sentence"),
    [
        ({}, {}, "at least one axis"),
        ({"a": []}, {}, "no values"),
        ({"a": [1, 1]}, {}, "twice"),
        ({"a": [1]}, {"parameters": {"a": 2}}, "given twice"),
        ({"a": {"log": [0, 1, 5]}}, {}, "no logarithm"),
        ({"a": {"linear": [2, 1, 5]}}, {}, "the smaller one"),
        ({"a": {"linear": [0, 1, 1]}}, {}, "at least 2"),
        ({"a": {"linear": [0, 1]}}, {}, "low, high, count"),
        ({"a": {"linaer": [0, 1, 5]}}, {}, "give a list"),
        ({"a": [float("nan")]}, {}, "finite"),
        ({"a": {"zip": {"b": [1, 2], "c": [1]}}}, {}, "b has 2, c has 1"),
        ({"a": {"random": {"a": {"log": [1, 2]}}}}, {}, "the count is None"),
        ({"seed": [1, 2]}, {}, "call the axis something else"),
        ({"c": {"zip": {"done": [1, 2], "b": [1, 2]}}}, {}, "axes.c: the results use the name done"),
        ({"c": {"random": {"seed": {"linear": [1, 2]}}, "count": 2}}, {}, "axes.c: the results use the name seed"),
        ({"x2": {"zip": {"x": [1, 2]}}, "x": {"zip": {"b": [1, 2, 3]}}}, {}, "x is also on the axis x2"),
        ({1: {"zip": {"a": [1, 2]}}, "1": {"zip": {"b": [1, 2]}}}, {}, "call this axis something else"),
        ({"a/b": {"zip": {"a": [1, 2]}}}, {}, "'a/b' cannot be a name"),
        ({"a": [1]}, {"parameters": [1]}, r"parameters = \[1\]: give a table"),
        ({"a": [1]}, {"seeds": True}, "seeds = True: give a whole number"),
        ({"a": [1]}, {"seeds": 2.5}, "seeds = 2.5: give a whole number"),
        ({"a": [1]}, {"seeds": 0}, "at least 1"),
        ({"a": [1]}, {"time_limit": -1}, "above 0"),
        ({"a": {"linear": [0, 1, 20_000]}}, {"seeds": 20_000}, "coarser"),
    ],
)
def test_refused(axes, more, sentence):
    with pytest.raises(SpecError, match=sentence):
        as_spec("f.py:f", axes, **more)


def test_names_that_are_not_in_the_results_are_free():
    spec = as_spec("f.py:f", {"x": {"zip": {"x": [1, 2], "b": [3, 4]}}}, {"seed": 3, "done": 1})
    assert spec.point((1,)) == {"seed": 3, "done": 1, "x": 2, "b": 4}


def test_whole_numbers_of_numpy():
    spec = as_spec("f.py:f", {"a": {"linear": [0, 4, np.int32(5)]}}, seeds=np.int64(3), seed=np.uint8(7))
    assert spec.shape == (5, 3)
    assert json.loads(json.dumps(spec.facts()))["seed"] == 7


def test_outputs_have_names_of_their_own():
    spec = as_spec("f.py:f", {"pair": {"zip": {"a": [1, 2], "b": [1, 2]}}}, {"c": 1})
    check_outputs(spec, {"v": ("v_0", "v_1"), "w": ("w_0",), "c": ()})
    for outputs, sentence in (
        ({"a": ()}, "returns 'a'"), ({"pair": ()}, "returns 'pair'"), ({"done": ()}, "returns 'done'"),
        ({"v": ("b",)}, "dimension 'b' of the output 'v' is also a name of the sweep"),
        ({"v": ("v_0",), "v_0": ()}, "dimension 'v_0' of the output 'v' is also an output"),
        ({3: ()}, "3 cannot be a name"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=sentence):
            check_outputs(spec, outputs)


def test_a_file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text('experiment = "own.py:f"\nseeds = 3\n[axes]\neta = {log = [0.01, 1.0, 3]}\n[parameters]\nn = 5\n')
    spec = read_spec(path)
    assert spec.experiment == f"{tmp_path.resolve()}/own.py:f"
    assert spec.point((1,)) == {"eta": 0.1, "n": 5}
    path.write_text("experimant = 'a'\n")
    with pytest.raises(SpecError, match="did you mean experiment"):
        read_spec(path)
    path.write_text("[axes\n")
    with pytest.raises(SpecError, match="not TOML"):
        read_spec(path)
    with pytest.raises(SpecError, match="cannot be read"):
        read_spec(tmp_path / "none.toml")


def test_words_tell_points_apart():
    points = [{"a": a, "b": b} for a in np.linspace(0, 1, 60).tolist() for b in range(60)]
    assert len({point_words(point) for point in points}) == len(points)
