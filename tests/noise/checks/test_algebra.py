"""Identities of a covariance: each one fails for a covariance with one wrong method."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.covariance import Factored, ScaledIdentity
from undertow.covariance.base import AbstractCovariance
from undertow.noise.checks import algebra
from undertow.noise.checks.algebra import algebra_rows, size_along

COLUMNS = {
    "a": jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 6)), jnp.float32),
    "b": jnp.asarray(np.random.default_rng(1).normal(size=(6,)), jnp.float32),
}
MEAN = {"a": jnp.ones((2, 2)), "b": jnp.array(-1.0)}


class OneWrong(AbstractCovariance):
    """A covariance with a factor, of which `wrong` replaces some methods."""

    right: Factored
    wrong: dict = eqx.field(static=True)

    def mv(self, vector):
        return self._answer("mv", vector)

    def normal_structure(self):
        return self.right.normal_structure()

    def sqrt_mv(self, normals):
        return self._answer("sqrt_mv", normals)

    def moment(self, form):
        return self._answer("moment", form)

    def trace(self, matrix=None):
        return self._answer("trace", matrix)

    def factor(self):
        return self._answer("factor")

    def _answer(self, name, *arguments):
        return self.wrong.get(name, lambda right, *a: getattr(right, name)(*a))(self.right, *arguments)


def doubled(tree):
    return jax.tree.map(lambda x: 2 * x, tree)


def failures(**wrong) -> set[str]:
    rows = algebra_rows(OneWrong(Factored(COLUMNS), wrong), MEAN, jax.random.key(0))
    assert all(row.remark for row in rows if row.status == "failed")
    return {row.name for row in rows if row.status == "failed"}


def test_a_correct_covariance_has_every_identity():
    assert failures() == set()
    rows = algebra_rows(Factored(COLUMNS), MEAN, jax.random.key(0))
    for row in rows:
        assert row.status == "ok"
        assert row.z is None
        assert row.value is not None
        np.testing.assert_allclose(row.value, row.expected, rtol=1e-4)


def skewed(right, v):
    image = right.mv(v)
    return {"a": image["a"] + 0.1 * jnp.roll(v["a"], 1, axis=0) * jnp.array([[1.0], [-1.0]]), "b": image["b"]}


SQRT = lambda right, z: doubled(right.sqrt_mv(z))
WRONG = {
    "affine": ({"mv": lambda s, v: jax.tree.map(lambda x: x + 0.1, s.mv(v))}, algebra.LINEAR),
    "not symmetric": ({"mv": skewed}, algebra.SYMMETRIC),
    "negative": ({"mv": lambda s, v: jax.tree.map(jnp.negative, s.mv(v))}, algebra.NOT_NEGATIVE),
    "a root that is not linear": ({"sqrt_mv": lambda s, z: jax.tree.map(jnp.tanh, s.sqrt_mv(z))}, algebra.ROOT_LINEAR),
    "a root of another matrix": ({"sqrt_mv": SQRT}, algebra.ROOT_SQUARE),
    "a factor of another matrix": ({"factor": lambda s: doubled(s.factor())}, algebra.FACTOR),
    "a trace that forgets A": ({"trace": lambda s, matrix: s.trace()}, algebra.TRACE_OUTER),
    "a trace without A that is wrong": (
        {"trace": lambda s, matrix: 2 * s.trace() if matrix is None else s.trace(matrix)},
        algebra.TRACE_IDENTITY,
    ),
    "a moment of another matrix": ({"moment": lambda s, form: doubled(s.moment(form))}, algebra.MOMENT_SQUARE),
    "an error": ({"factor": lambda s: jax.tree.map(lambda x: 1 / 0, s.factor())}, algebra.FACTOR),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_method_fails_its_identity(case):
    wrong, name = WRONG[case]
    assert name in failures(**wrong)


@pytest.mark.parametrize("method", ["sqrt_mv", "factor", "moment"])
def test_a_single_wrong_method_fails_alone(method):
    """An error of one per cent is found, and no other identity fails."""
    slightly = lambda s, *a: jax.tree.map(lambda x: 1.01 * x, getattr(s, method)(*a))
    expected = {
        "sqrt_mv": {algebra.ROOT_SQUARE},
        "factor": {algebra.FACTOR},
        "moment": {algebra.MOMENT_PRODUCT, algebra.MOMENT_SQUARE},
    }
    assert failures(**{method: slightly}) == expected[method]


def test_large_params_skip_traces_and_a_large_factor():
    size = algebra.LARGEST_TRACE + 1
    rows = {row.name: row for row in algebra_rows(ScaledIdentity(jnp.array(2.0), jnp.zeros(size)), jnp.ones(size),
                                                  jax.random.key(1))}  # fmt: skip
    for name in (algebra.TRACE_OUTER, algebra.TRACE_IDENTITY, algebra.MOMENT_PRODUCT, algebra.MOMENT_SQUARE):
        assert rows[name].status == "skipped"
        assert rows[name].remark == "more than 16384 parameters"
    assert rows[algebra.FACTOR].remark == "the factor takes 1024 MiB"
    others = [row for row in rows.values() if row.status != "skipped"]
    assert {row.status for row in others} == {"ok"}
    assert len(others) == 5


def test_zero_noise_and_a_large_mean_are_no_failures():
    """A covariance of second moments that cancel up to rounding: the rounding error is relative to the mean."""
    rows = algebra_rows(Factored(jax.tree.map(jnp.zeros_like, COLUMNS)), MEAN, jax.random.key(0))
    assert {row.status for row in rows} == {"ok"}


def test_the_size_along_a_vector():
    v = {"a": jnp.array([[1.0, 2.0], [0.0, 0.0]]), "b": jnp.array(2.0)}
    assert float(size_along(v, MEAN)) == pytest.approx(abs(1 + 2 - 2) + 3.0)
