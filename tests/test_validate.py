"""Checks of arguments: what passes, and the sentence about what does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.mistakes import assert_explained
from undertow import _validate as validate
from undertow._validate import as_key


def test_keys_of_both_kinds_and_numbers_of_numpy():
    assert as_key("f", jax.random.PRNGKey(5)) == jax.random.key(5)
    assert as_key("f", np.int64(5)) == jax.random.key(5)
    for wrong in (None, 1.5, True, "7"):
        with pytest.raises(TypeError, match=r"`f\(key=.*give `key=jax\.random\.key\(0\)`, or a whole number"):
            as_key("f", wrong)


def test_a_call_is_quoted_as_the_user_wrote_it():
    assert validate.quote("LabelNoise", batch_size=64, replace=False) == "`LabelNoise(batch_size=64, replace=False)`"
    assert validate.quote("f") == "`f()`"


def test_tracers_are_not_concrete():
    known = []
    jax.jit(lambda x: known.append(validate.concrete(x)))(1.0)
    assert known == [False]
    assert validate.concrete(1.0)
    assert validate.concrete(jnp.zeros(2))


@pytest.mark.parametrize("value", [1, 7, np.int32(3), np.int64(3)])
def test_whole_numbers_of_at_least_one(value):
    checked = validate.positive_integer("f", "steps", value)
    assert checked == value
    assert type(checked) is int


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.99), np.array(0.25), jnp.array(0.25), 2**-30])
def test_numbers_in_an_interval(value):
    assert validate.finite_number("f", "momentum", value, below=1.0) is None


def test_a_traced_number_is_not_checked():
    assert jax.jit(lambda x: validate.finite_number("f", "x", x) or x)(-1.0) == -1


def test_old_names_of_arguments_and_attributes():
    @validate.renamed_arguments("wait", looks="num_saves", when="time")
    def wait(num_saves, time=2):
        """Wait."""
        return num_saves, time

    assert wait(3, time=1) == (3, 1)
    assert wait(num_saves=3) == (3, 2)
    assert wait.__doc__ == "Wait."
    for old, new in (("looks", "num_saves"), ("when", "time")):
        assert_explained(lambda old=old: wait(1, **{old: 1}), rf"`wait\({old}=\.\.\.\)`.*write `wait\({new}=")

    class Batch:
        size = validate.RenamedAttribute("batch_size")

    for thing in (Batch(), Batch):
        assert_explained(lambda thing=thing: thing.size, r"`Batch\.size` is called `batch_size` now")


@pytest.mark.parametrize("value", [[1, 2], (1.5, 2), np.array([True, False]), jnp.ones(2), np.ma.array([1.0, 2.0])])
def test_real_arrays_become_doubles(value):
    array = validate.real_array("f", "x", value)
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, np.asarray(value, float))


def test_params_are_trees_of_floats():
    assert validate.params_of_floats("f", {"w": jnp.zeros(2, jnp.bfloat16), "b": np.zeros(1)}) is None
    assert jax.jit(lambda p: validate.params_of_floats("f", p) or p)(1.0) == 1


def test_the_length_of_the_sample_axis():
    assert validate.sample_axis("f", inputs={"a": np.zeros((3, 2)), "b": np.zeros(3)}, targets=np.zeros((3, 1))) == 3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jnp.bfloat16])
def test_probabilities_are_divided_by_their_sum(dtype, x64):
    """The sum of three rounded thirds is off by rounding, which is removed before the cast."""
    given = np.array([1 / 3] * 3).astype(dtype)
    checked = validate.probabilities("f", "weights", given, 3)
    assert checked.dtype == dtype
    assert abs(float(np.asarray(checked, float).sum()) - 1) <= float(jnp.finfo(dtype).eps)
    nearly = np.array([0.5, 0.5 + 9e-6])
    np.testing.assert_allclose(validate.probabilities("f", "weights", nearly, 2), nearly / nearly.sum(), rtol=1e-12)


def test_probabilities_may_be_whole_numbers_or_traced():
    np.testing.assert_array_equal(validate.probabilities("f", "weights", [0, 1], 2), [0.0, 1.0])
    traced = jax.jit(lambda w: validate.probabilities("f", "weights", w, 2))(jnp.array([1.0, 1.0]))
    np.testing.assert_array_equal(traced, [1.0, 1.0])


def test_group_labels_and_shares():
    np.testing.assert_array_equal(validate.group_labels("f", np.array([1, 0, 1, 2])), [1, 2, 1])
    np.testing.assert_allclose(validate.group_shares("f", [0.25, 0.75 + 5e-7], 2).sum(), 1.0, rtol=1e-15)


MISTAKES = {
    "a whole number that is a float": (
        lambda: validate.positive_integer("f", "steps", 2.0),
        r"`f\(steps=2\.0\)`: `steps` must be a whole number of at least 1",
    ),
    "a flag as a whole number": (lambda: validate.positive_integer("f", "steps", True), "whole number"),
    "zero as a whole number": (lambda: validate.positive_integer("f", "steps", 0), "`steps` must be at least 1"),
    "a negative whole number": (
        lambda: validate.positive_integer("f", "steps", -3),
        r"`f\(steps=-3\)`: `steps` must be at least 1",
    ),
    "a flag as a number": (lambda: validate.finite_number("f", "x", True), "`x` must be a number"),
    "text as a number": (lambda: validate.finite_number("f", "x", "1"), r"`f\(x='1'\)`: `x` must be a number"),
    "an array as a number": (lambda: validate.finite_number("f", "x", np.ones(2)), "`x` must be a number"),
    "an infinite number": (
        lambda: validate.finite_number("f", "x", np.inf),
        r"`f\(x=inf\)`: `x` must be a finite number, at least 0\.",
    ),
    "a number on its bound": (
        lambda: validate.finite_number("f", "x", 1.0, below=1.0),
        "a finite number, at least 0 and below 1",
    ),
    "a number under its bound": (lambda: validate.finite_number("f", "x", 1.9, least=2.0), "at least 2"),
    "masked entries": (
        lambda: validate.real_array("f", "x", np.ma.array([1.0, 2.0], mask=[0, 1])),
        "`x` has masked entries; drop those samples or fill them",
    ),
    "masked entries in a list": (
        lambda: validate.real_array("f", "x", [np.ma.array([1.0, 2.0], mask=[0, 1]), np.zeros(2)]),
        "masked entries",
    ),
    "complex numbers": (lambda: validate.real_array("f", "x", [1j, 2]), "`x` is complex; give real numbers"),
    "complex numbers among objects": (
        lambda: validate.real_array("f", "x", np.array([1.0, 2j], dtype=object)),
        "`x` is complex",
    ),
    "text": (lambda: validate.real_array("f", "x", ["a", "b"]), "`x` has entries that are not numbers; encode text"),
    "dates": (
        lambda: validate.real_array("f", "x", np.array(["2020-01-01"], "datetime64[D]")),
        "encode text and dates as numbers",
    ),
    "rows of several lengths": (lambda: validate.real_array("f", "x", [[1.0], [1.0, 2.0]]), "not numbers"),
    "no params": (lambda: validate.params_of_floats("f", {}), "`params` has no leaves"),
    "a number as params": (
        lambda: validate.params_of_floats("f", {"w": 1.0}),
        r"`params\['w'\]` is a float, not a float array; wrap numbers with jnp.asarray",
    ),
    "whole numbers as params": (
        lambda: validate.params_of_floats("f", (jnp.zeros(1), jnp.arange(2))),
        r"`params\[1\]` has dtype int32; params must be real floating-point",
    ),
    "complex params": (lambda: validate.params_of_floats("f", jnp.ones(2) * 1j), "`params` has dtype complex64"),
    "a list as data": (lambda: validate.sample_axis("f", data=[1.0]), r"`data\[0\]` is a float; data must be arrays"),
    "no data": (lambda: validate.sample_axis("f", data={}), "no data"),
    "a sample axis of length zero": (lambda: validate.sample_axis("f", data=np.zeros((0, 2))), "empty"),
    "sample axes that differ": (
        lambda: validate.sample_axis("f", inputs=np.zeros(3), targets=np.zeros(4)),
        "`inputs` 3, `targets` 4; make them equal",
    ),
    "probabilities that are text": (
        lambda: validate.probabilities("f", "weights", np.array(["a", "b"]), 2),
        "`weights` has dtype .*; give real numbers",
    ),
    "a sum that rounding does not explain": (
        lambda: validate.probabilities("f", "weights", np.array([0.5, 0.5 + 2e-5]), 2),
        "`weights` must sum to 1, not to 1.00002; divide it by its sum",
    ),
    "labels that are floats": (
        lambda: validate.group_labels("f", np.array([0.0, 1.0])),
        "`groups` has dtype float64; give whole numbers",
    ),
    "labels with a gap": (lambda: validate.group_labels("f", np.array([0, 2])), "group 1 has no data"),
    "a negative label": (lambda: validate.group_labels("f", np.array([0, -1])), "`groups` holds -1"),
    "a share that is NaN": (lambda: validate.group_shares("f", [np.nan, 1.0], 2), "must be positive and sum to 1"),
    "a share of zero": (lambda: validate.group_shares("f", [0.0, 1.0], 2), "leave out an environment of weight 0"),
    "too few shares": (lambda: validate.group_shares("f", [1.0], 2), r"shape \(1,\) and there are 2 groups"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
