"""The covariance of label noise against dense Jacobians."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests import dense
from tests.kinds import params, regression
from undertow import _chunks as chunks
from undertow import _trees as trees
from undertow.covariance import LabelCovariance

AMOUNT = 0.3
WEIGHTS = np.arange(1.0, 8.0) / 28


@pytest.fixture(params=["at once", "in chunks"])
def example(request, x64, monkeypatch):
    """A covariance with weighted samples and three outputs, its params and its dense matrix."""
    task, point = regression(3, jnp.float64).reweight(jnp.asarray(WEIGHTS)), params(3, jnp.float64)
    jacobians = dense.jacobians(task, point)
    expected = AMOUNT * np.einsum("i,iqa,iqb->ab", WEIGHTS, jacobians, jacobians)
    sigma = LabelCovariance(task, point, jnp.asarray(AMOUNT))
    if request.param == "in chunks":
        monkeypatch.setattr(chunks, "BUDGET_BYTES", 3 * 3 * 8 * (12 + 6))
        assert sigma._chunk() == 3  # 7 samples: two whole chunks and one sample
    return sigma, point, expected


def test_every_method_is_that_of_the_dense_matrix(example):
    sigma, point, expected = example
    dense.assert_covariance(sigma, point, expected)


def test_a_chunk_counts_the_outputs_of_a_sample(monkeypatch):
    """The Jacobian of a sample has one row for each output; a chunk has one sample at least."""
    task, point = regression(3), params(3)
    bytes_each = trees.floats_bytes(point) + trees.floats_bytes(task.data) // task.size
    sigma = LabelCovariance(task, point, jnp.asarray(AMOUNT))
    for budget, expected in ((6 * bytes_each, 2), (5 * bytes_each, 1), (1, 1)):
        monkeypatch.setattr(chunks, "BUDGET_BYTES", budget)
        assert sigma._chunk() == expected
