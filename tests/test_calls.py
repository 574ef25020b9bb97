"""Calls of undertow with wrong arguments, and calls of a user's functions."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.mistakes import assert_explained
from undertow import _calls as calls


def test_old_names_of_arguments_and_attributes():
    @calls.checked_call("wait", looks="num_saves", when="time")
    def wait(num_saves, time=2):
        """Wait."""
        return num_saves, time

    assert wait(3, time=1) == (3, 1)
    assert wait(num_saves=3) == (3, 2)
    assert wait.__doc__ == "Wait."
    for old, new in (("looks", "num_saves"), ("when", "time")):
        assert_explained(lambda old=old: wait(1, **{old: 1}), rf"`wait\({old}=\.\.\.\)`.*write `wait\({new}=")

    class Batch:
        size = calls.RenamedAttribute("batch_size")

    for thing in (Batch(), Batch):
        assert_explained(lambda thing=thing: thing.size, r"`Batch\.size` is called `batch_size` now")


def test_an_error_inside_a_function_is_not_one_of_its_call():
    @calls.checked_call("wait")
    def wait(time):
        raise TypeError("inside")

    with pytest.raises(TypeError, match=r"^inside$"):
        wait(1)


@pytest.mark.parametrize("function", [lambda a, b: 0, lambda *a: 0, lambda a, b, c=1: 0, jax.jit(lambda a, b: 0), max])
def test_functions_that_fit_a_call(function):
    calls.check_function("f", "loss(params, sample)", function)


@pytest.mark.parametrize("function", [lambda a: 0, lambda: 0, lambda a, b, c: 0, lambda a, *, b: 0])
def test_functions_that_do_not_fit_a_call(function):
    assert_explained(lambda: calls.check_function("f", "loss(params, sample)", function), "is called as `loss")


def outside(kind):
    """Return a function that draws outside of JAX."""
    return {
        "a literal": lambda w: w * random.random(),
        "a constant": lambda w: w + np.random.normal(size=2),  # noqa: NPY002
        "the number of operations": lambda w: sum([w] * random.randrange(2, 99)),
        "inside a loop": lambda w: jax.lax.fori_loop(0, 3, lambda i, x: x * random.random(), w),
        "a jitted function": jax.jit(lambda w: w * random.random()),
        "the result alone": lambda w: random.random(),
    }[kind]


@pytest.mark.parametrize("kind", ["a literal", "a constant", "the number of operations", "inside a loop",
                                  "a jitted function", "the result alone"])  # fmt: skip
def test_random_numbers_outside_of_jax_are_found(kind):
    random.seed(0)  # two draws that agree would not be found
    with pytest.raises(ValueError, match="gives different values when it is traced twice"):
        calls.check_repeats("f", "loss(params)", outside(kind), jnp.ones(2))


def test_outputs_are_shapes_and_other_values_raise():
    assert calls.output_of("f", "g(x)", lambda x: {"a": 2 * x, "b": 1.0}, jnp.ones(3))["a"].shape == (3,)
    with pytest.raises(TypeError, match=r"`f`: `g\(x\)` returns a str, 'no'; return JAX arrays"):
        calls.output_of("f", "g(x)", lambda x: "no", jnp.ones(3))


def test_dicts_of_functions():
    assert calls.check_functions("f", "observe", None) == {}
    assert list(calls.check_functions("f", "observe", {"w": lambda w: w})) == ["w"]


def test_one_note_for_nested_calls():
    with pytest.raises(KeyError) as caught, calls.noted("f", "g(x)"), calls.noted("f", "g(x)"):
        raise KeyError("x")
    assert caught.value.__notes__ == ["undertow called `g(x)` of `f` here."]
