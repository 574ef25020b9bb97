"""Checks of arrays: what passes, and the sentence about what does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.mistakes import assert_explained
from undertow import _arrays as arrays


@pytest.mark.parametrize("value", [[1, 2], (1.5, 2), np.array([True, False]), jnp.ones(2), np.ma.array([1.0, 2.0])])
def test_real_arrays_become_doubles(value):
    array = arrays.real_array("f", "x", value)
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, np.asarray(value, float))


def test_the_length_of_the_sample_axis():
    assert arrays.sample_axis("f", inputs={"a": np.zeros((3, 2)), "b": np.zeros(3)}, targets=np.zeros((3, 1))) == 3


def test_targets_of_a_regression_become_floats():
    inputs, targets = arrays.regression_arrays("f", {"a": np.zeros((2, 3))}, np.array([1, 2]))
    assert isinstance(inputs["a"], jax.Array)
    assert targets.dtype == jnp.result_type(float)
    np.testing.assert_array_equal(targets, [1.0, 2.0])
    assert arrays.regression_arrays("f", np.zeros(2), np.zeros((2, 1), np.float16))[1].dtype == np.float16


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jnp.bfloat16])
def test_probabilities_are_divided_by_their_sum(dtype, x64):
    """The sum of three rounded thirds is off by rounding, which is removed before the cast."""
    given = np.array([1 / 3] * 3).astype(dtype)
    checked = arrays.probabilities("f", "weights", given, 3)
    assert checked.dtype == dtype
    assert abs(float(np.asarray(checked, float).sum()) - 1) <= float(jnp.finfo(dtype).eps)
    nearly = np.array([0.5, 0.5 + 9e-6])
    np.testing.assert_allclose(arrays.probabilities("f", "weights", nearly, 2), nearly / nearly.sum(), rtol=1e-12)


def test_probabilities_may_be_whole_numbers_or_traced():
    np.testing.assert_array_equal(arrays.probabilities("f", "weights", [0, 1], 2), [0.0, 1.0])
    traced = jax.jit(lambda w: arrays.probabilities("f", "weights", w, 2))(jnp.array([1.0, 1.0]))
    np.testing.assert_array_equal(traced, [1.0, 1.0])


def test_group_labels_and_shares():
    labels, counts = arrays.group_labels("f", [1, 0, 1, 2], 4)
    np.testing.assert_array_equal(labels, [1, 0, 1, 2])
    np.testing.assert_array_equal(counts, [1, 2, 1])
    np.testing.assert_allclose(arrays.group_shares("f", [0.25, 0.75 + 5e-7], 2).sum(), 1.0, rtol=1e-15)


MISTAKES = {
    "masked entries": (
        lambda: arrays.real_array("f", "x", np.ma.array([1.0, 2.0], mask=[0, 1])),
        "`x` has masked entries; drop those samples or fill them",
    ),
    "masked entries in a list": (
        lambda: arrays.real_array("f", "x", [np.ma.array([1.0, 2.0], mask=[0, 1]), np.zeros(2)]),
        "masked entries",
    ),
    "complex numbers": (lambda: arrays.real_array("f", "x", [1j, 2]), "`x` is complex; give real numbers"),
    "complex numbers among objects": (
        lambda: arrays.real_array("f", "x", np.array([1.0, 2j], dtype=object)),
        "`x` is complex",
    ),
    "text": (
        lambda: arrays.real_array("f", "x", ["a", "b"]),
        "`x` has entries that are not numbers, with dtype <U1; .*encode text",
    ),
    "dates": (
        lambda: arrays.real_array("f", "x", np.array(["2020-01-01"], "datetime64[D]")),
        "encode text and dates as numbers",
    ),
    "rows of several lengths": (lambda: arrays.real_array("f", "x", [[1.0], [1.0, 2.0]]), "not numbers"),
    "a list as data": (lambda: arrays.sample_axis("f", data=[1.0]), r"`data\[0\]` is 1.0; data must be arrays"),
    "no data": (lambda: arrays.sample_axis("f", data={}), "no data"),
    "a sample axis of length zero": (lambda: arrays.sample_axis("f", data=np.zeros((0, 2))), "empty"),
    "sample axes that differ": (
        lambda: arrays.sample_axis("f", inputs=np.zeros(3), targets=np.zeros(4)),
        "`inputs` 3, `targets` 4; make them equal",
    ),
    "probabilities that are text": (
        lambda: arrays.probabilities("f", "weights", np.array(["a", "b"]), 2),
        "`weights` has dtype .*; give real numbers",
    ),
    "a sum that rounding does not explain": (
        lambda: arrays.probabilities("f", "weights", np.array([0.5, 0.5 + 2e-5]), 2),
        "`weights` must sum to 1, not to 1.00002; divide it by its sum",
    ),
    "labels that are floats": (
        lambda: arrays.group_labels("f", [0.0, 1.0], 2),
        "`groups` has dtype float64; give whole numbers",
    ),
    "labels with a gap": (lambda: arrays.group_labels("f", [0, 2], 2), "group 1 has no data"),
    "a negative label": (lambda: arrays.group_labels("f", [0, -1], 2), "`groups` holds -1"),
    "a share that is NaN": (lambda: arrays.group_shares("f", [np.nan, 1.0], 2), "must be positive and sum to 1"),
    "a share of zero": (lambda: arrays.group_shares("f", [0.0, 1.0], 2), "leave out an environment of weight 0"),
    "too few shares": (lambda: arrays.group_shares("f", [1.0], 2), r"shape \(1,\) and there are 2 groups"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
