"""The contract of a noise: a noise that breaks one rule fails at that rule."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import KINDS
from tests.kinds import point as point_of
from undertow.covariance import ScaledIdentity
from undertow.noise.checks.contract import contract_rows, error_line

BOWL = ut.Problem(lambda p, _: sum(jnp.sum(x**2) for x in jax.tree.leaves(p)) / 2, jnp.zeros(1))
POINT = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(0.5)}


class Base(ut.AbstractNoise):
    """Isotropic noise whose methods are given, so that each test replaces one of them."""

    problem: ut.AbstractProblem
    methods: dict = eqx.field(static=True)

    def randomness(self, key, count, like=None):
        return self.methods.get("randomness", jax.random.split)(key, count)

    def gradient(self, params, slice):
        return self.methods.get("gradient", disturbed)(params, slice)

    def covariance(self, params):
        return self.methods.get("covariance", lambda p: ScaledIdentity(jnp.array(1.0), p))(params)

    def mean(self, params):
        return self.methods.get("mean", self.problem.gradient)(params)


def disturbed(params, key):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    kicks = [x + jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, kicks)


class WithLike(ut.AbstractNoise):
    """Isotropic noise that uses `like` in the given way."""

    problem: ut.AbstractProblem
    numbers: object = eqx.field(static=True)

    def randomness(self, key, count, like=None):
        keys = jax.random.split(key, count)
        return keys if like is None else jax.vmap(lambda k: self.numbers(k, like))(keys)

    def gradient(self, params, slice):
        kick = slice if isinstance(slice, dict) else {"a": jax.random.normal(slice, (2,)), "b": jnp.zeros(())}
        return jax.tree.map(jnp.add, params, kick)

    def covariance(self, params):
        return ScaledIdentity(jnp.array(1.0), params)


def rows_of(noise, point=POINT) -> list:
    return contract_rows(noise, point, jax.random.key(0))


def test_a_correct_noise_passes_every_rule():
    rows = rows_of(Base(BOWL, {}))
    assert [row.status for row in rows] == ["ok"] * 10
    assert len({row.name for row in rows}) == 10


HALF = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float16), tree)
CALLS = []


def counting(params, key):
    """Return another value at every call, as a gradient with a state in Python does."""
    CALLS.append(1)
    return jax.tree.map(lambda x: x + len(CALLS), params)


BROKEN = {
    "a scalar": ("randomness: leading axis", {"randomness": lambda key, n: jax.random.normal(key)}, "shape \\(\\)"),
    "trailing axis": (
        "randomness: leading axis",
        {"randomness": lambda key, n: jax.random.normal(key, (3, n))},
        r"leaf of shape \(3, 1\) for count=1",
    ),
    "no numbers": ("randomness: leading axis", {"randomness": lambda key, n: ()}, "has no arrays"),
    "structure": ("gradient: shapes", {"gradient": lambda p, s: disturbed(p, s)["a"]}, "make them match"),
    "shape": (
        "gradient: shapes",
        {"gradient": lambda p, s: {"a": p["a"][:1], "b": p["b"]}},
        r"shape \(1,\) for `a`, which has shape \(2,\)",
    ),
    "dtype": (
        "gradient: shapes",
        {"gradient": lambda p, s: HALF(disturbed(p, s))},
        "float16 for `a`, which has float32",
    ),
    "not finite": (
        "gradient: shapes",
        {"gradient": lambda p, s: jax.tree.map(lambda x: x * jnp.inf, p)},
        "not finite",
    ),
    "mean": ("mean: shapes", {"mean": lambda p: HALF(p)}, r"`mean\(params\)` has dtype float16"),
    "branch on a value": (
        "gradient: shapes",
        {"gradient": lambda p, s: p if jax.random.uniform(s) < 0.5 else disturbed(p, s)},
        "it raised TracerBoolConversionError",
    ),
    "NumPy": (
        "gradient: shapes",
        {"gradient": lambda p, s: jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), p)},
        "it raised TracerArrayConversionError",
    ),
    "a state in Python": ("gradient: ", {"gradient": counting}, "another value|different gradients"),
    "product": (
        "covariance: shapes",
        {"covariance": lambda p: ScaledIdentity(jnp.array(1.0), HALF(p))},
        r"`covariance\(params\)\.sqrt_mv\(z\)` has dtype float16",
    ),
    "an error": (
        "covariance: shapes",
        {"covariance": lambda p: 1 / 0},
        "it raised ZeroDivisionError: division by zero",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_named(case, as_a_user):
    name, methods, message = BROKEN[case]
    rows = rows_of(Base(BOWL, methods))
    (failed,) = [row for row in rows if row.status == "failed"]
    assert failed.name.startswith(name)
    assert re.search(message, failed.remark), failed.remark
    after = rows[rows.index(failed) + 1 :]
    assert all(row.status == "skipped" and row.remark == "an earlier check failed" for row in after)


def test_randomness_that_depends_on_params():
    noise = WithLike(BOWL, lambda k, like: {"a": like["a"] * jax.random.normal(k), "b": jnp.zeros(())})
    (failed,) = [row for row in rows_of(noise) if row.status == "failed"]
    assert failed.name == "randomness: independent of params"
    assert "params move within the block" in failed.remark


def test_numbers_that_are_not_those_of_the_keys():
    noise = WithLike(BOWL, lambda k, like: {"a": jax.random.uniform(k, (2,)), "b": jnp.zeros(())})
    (failed,) = [row for row in rows_of(noise) if row.status == "failed"]
    assert failed.name == "gradient: same with and without like"
    right = WithLike(BOWL, lambda k, like: {"a": jax.random.normal(k, (2,)), "b": jnp.zeros(())})
    assert all(row.status == "ok" for row in rows_of(right))


def test_params_that_the_noise_rejects():
    rows = rows_of(Base(BOWL, {}), {"a": jnp.arange(2), "b": jnp.array(1.0)})
    assert rows[0].name == "check(params)"
    assert "TypeError" in rows[0].remark
    assert {row.status for row in rows[1:]} == {"skipped"}


def test_the_mean_of_a_population_is_not_asked_for():
    kind = "minibatch of a population"
    assert all(row.status == "ok" for row in rows_of(KINDS[kind](), point_of(kind)))


def test_an_error_is_shown_by_its_type_and_first_line():
    assert error_line(ValueError("first\nsecond")) == "it raised ValueError: first"
    assert error_line(ValueError()) == "it raised ValueError: "
