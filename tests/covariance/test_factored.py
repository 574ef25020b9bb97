"""Covariances with an explicit factor and multiples of the identity, against dense matrices."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests import dense
from undertow.covariance import Factored, ScaledIdentity

COLUMNS = np.random.default_rng(7).normal(size=(5, 3))


@pytest.fixture
def like(x64):
    """Params of five numbers in two leaves."""
    return {"a": jnp.zeros((2, 2)), "b": jnp.zeros(())}


@pytest.fixture(params=["factored", "identity"])
def kind(request, like):
    """A covariance, and its dense matrix."""
    if request.param == "factored":
        columns = {"a": jnp.asarray(COLUMNS[:4].reshape(2, 2, 3)), "b": jnp.asarray(COLUMNS[4])}
        return Factored(columns), COLUMNS @ COLUMNS.T
    return ScaledIdentity(jnp.asarray(0.09), like), 0.09 * np.eye(5)


def test_every_method_is_that_of_the_dense_matrix(kind, like):
    sigma, expected = kind
    dense.assert_covariance(sigma, like, expected)


def test_the_normals_of_a_draw(like):
    """As many as the factor has columns, or as many as params has numbers."""
    factored = Factored({"a": jnp.zeros((2, 2, 3), jnp.float32), "b": jnp.zeros(3, jnp.float32)})
    normals = factored.normal_structure()
    assert (normals.shape, normals.dtype) == ((3,), jnp.float32)
    identity = ScaledIdentity(jnp.asarray(2.0), like)
    assert {name: leaf.shape for name, leaf in identity.normal_structure().items()} == {"a": (2, 2), "b": ()}


def test_products_keep_the_type_of_params():
    """The variance is a float32 number; bfloat16 params stay in bfloat16."""
    ones = jnp.ones(3, jnp.bfloat16)
    sigma = ScaledIdentity(jnp.asarray(4.0), ones)
    for product, factor in ((sigma.mv(ones), 4), (sigma.sqrt_mv(ones), 2)):
        assert product.dtype == jnp.bfloat16
        np.testing.assert_array_equal(product.astype(float), factor * np.ones(3))
