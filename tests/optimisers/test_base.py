"""What all optimisers share: checks of their numbers, and arrays for them in place of floats."""

import jax
import jax.numpy as jnp
import pytest

import undertow as ut
from tests.mistakes import assert_explained
from undertow.optimisers.base import as_number

ALL = [ut.SGD(), ut.SGD(0.9, nesterov=True), ut.RMSProp(), ut.Adam(), ut.AdamW()]

MISTAKES = {
    "momentum of one": (lambda: ut.SGD(momentum=1.0), r"`SGD\(momentum=1.0\)`.*at least 0 and below 1"),
    "momentum as text": (lambda: ut.SGD(momentum="0.9"), r"`SGD\(momentum='0.9'\)`: `momentum` must be a number"),
    "a negative decay": (lambda: ut.SGD(weight_decay=-1.0), r"`SGD\(weight_decay=-1.0\)`.*at least 0"),
    "Nesterov without momentum": (lambda: ut.SGD(nesterov=True), r"needs momentum; give `momentum=0.9`"),
    "b1 of one": (lambda: ut.Adam(b1=1.0), r"`Adam\(b1=1.0\)`.*below 1"),
    "a negative b1": (lambda: ut.AdamW(b1=-0.1), r"`AdamW\(b1=-0.1\)`.*at least 0"),
    "b2 above one": (lambda: ut.Adam(b2=1.5), r"`Adam\(b2=1.5\)`.*below 1"),
    "b2 of NaN": (lambda: ut.RMSProp(b2=float("nan")), r"`RMSProp\(b2=nan\)`.*finite"),
    "a negative eps": (lambda: ut.RMSProp(eps=-1e-8), r"`RMSProp\(eps=-1e-08\)`.*at least 0"),
    "an infinite decay": (lambda: ut.AdamW(weight_decay=float("inf")), r"`AdamW\(weight_decay=inf\)`.*finite"),
    "a vector of b2": (lambda: ut.Adam(b2=jnp.array([0.9, 0.99])), "`b2` must be a number"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_numbers_are_explained(name, as_a_user):
    assert_explained(*MISTAKES[name])


@pytest.mark.parametrize("optimiser", ALL, ids=lambda o: type(o).__name__)
def test_numbers_become_arrays_and_flags_stay(optimiser):
    prepared = optimiser.prepared()
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(prepared))
    assert type(prepared) is type(optimiser)
    again = prepared.prepared()
    assert jax.tree.structure(again) == jax.tree.structure(prepared)


def test_a_setting_may_be_traced():
    traced = jax.jit(lambda b2: as_number("Adam", "b2", b2, below=1.0) * 2)
    assert traced(0.5) == 1.0
    assert as_number("Adam", "b2", jnp.asarray(0.5)) == 0.5
