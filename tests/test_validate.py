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
        with pytest.raises(TypeError, match=r"`f\(key=.*give one key, `key=jax\.random\.key\(0\)`, or a whole number"):
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


def test_params_are_trees_of_floats():
    assert validate.params_of_floats("f", {"w": jnp.zeros(2, jnp.bfloat16), "b": np.zeros(1)}) is None
    assert jax.jit(lambda p: validate.params_of_floats("f", p) or p)(1.0) == 1


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
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
