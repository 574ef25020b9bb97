"""Covariances given by functions, and sums of covariances, against dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import dense
from undertow import _trees as trees
from undertow.covariance import Factored, Operator, ScaledIdentity, Sum

ROOT = np.random.default_rng(7).normal(size=(5, 6))


@pytest.fixture
def like(x64):
    """Params of five numbers in two leaves."""
    return {"a": jnp.zeros((2, 2)), "b": jnp.zeros(())}


def as_map(array, like):
    """Return a matrix as a linear map to vectors like params."""
    _, unravel = jax.flatten_util.ravel_pytree(like)
    return lambda v: unravel(jnp.asarray(array) @ trees.ravel(v))


@pytest.fixture
def operator(like):
    """Sigma = R R' with normals in two arrays of three."""
    normals = (jax.ShapeDtypeStruct((3,), jnp.float64), jax.ShapeDtypeStruct((3,), jnp.float64))
    return Operator(as_map(ROOT @ ROOT.T, like), as_map(ROOT, like), normals, like=like)


@pytest.fixture(params=["operator", "sum"])
def kind(request, operator, like):
    """A covariance, and its dense matrix."""
    if request.param == "operator":
        return operator, ROOT @ ROOT.T
    columns = {"a": jnp.asarray(ROOT[:4, :2].reshape(2, 2, 2)), "b": jnp.asarray(ROOT[4, :2])}
    total = Sum((operator, Factored(columns), ScaledIdentity(jnp.asarray(0.5), like)))
    return total, ROOT @ ROOT.T + ROOT[:, :2] @ ROOT[:, :2].T + 0.5 * np.eye(5)


def test_every_method_is_that_of_the_dense_matrix(kind, like):
    sigma, expected = kind
    dense.assert_covariance(sigma, like, expected)


def test_the_parts_of_a_sum_have_their_own_normals(operator):
    """Parts that share normals would be correlated."""
    total = Sum((operator, operator))
    normals = trees.standard_normal(jax.random.key(0), total.normal_structure())
    first, second = (np.asarray(trees.ravel(part)) for part in normals)
    assert first.shape == second.shape == (6,)
    assert np.unique([first, second]).size == 12
    np.testing.assert_allclose(trees.ravel(total.sqrt_mv(normals)), ROOT @ first + ROOT @ second, rtol=1e-12)


def test_a_sum_of_one_part_is_that_part(operator, like):
    dense.assert_covariance(Sum((operator,)), like, ROOT @ ROOT.T)
