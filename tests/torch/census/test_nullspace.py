"""Integer null spaces and their sparsest bases."""

import numpy as np
import pytest

from undertow.torch.census.nullspace import integer_null_space, sparse_basis

pytestmark = pytest.mark.torch


def matrix_with_null_space(vectors, rows=40, seed=0):
    """Return a random matrix whose null space is spanned by these vectors, with columns of very different sizes."""
    vectors = np.array(vectors, float)
    drawn = np.random.default_rng(seed).normal(size=(rows, vectors.shape[1]))
    return drawn - drawn @ np.linalg.pinv(vectors) @ vectors


def same_span(one, two):
    rank = np.linalg.matrix_rank
    return rank(one) == rank(two) == rank(np.concatenate([one, two]))


@pytest.mark.parametrize("vectors", [[[1, -1, 0, 0, 0]], [[1, 1, -1, 0, 0], [0, 0, 0, 1, -1]], [[1, -1, 1, -1, 0]]])
def test_the_null_space_has_the_known_span(vectors):
    null = integer_null_space(matrix_with_null_space(vectors))
    assert (null.ambiguous, null.non_integer) == ((), ())
    assert same_span(null.basis.T, np.array(vectors, float))
    assert same_span(np.stack(sparse_basis(null.basis, np.zeros((5, 0)))), np.array(vectors, float))


def test_a_matrix_of_full_rank_has_no_null_space():
    null = integer_null_space(np.random.default_rng(0).normal(size=(10, 4)))
    assert null.basis.shape == (4, 0)
    assert integer_null_space(np.zeros((3, 0))).basis.shape == (0, 0)


def test_doubtful_values_are_reported():
    matrix = matrix_with_null_space([[1, -1, 0, 0, 0]])
    matrix[:, 0] += 1e-4 * np.random.default_rng(1).normal(size=len(matrix))
    null = integer_null_space(matrix)
    assert null.basis.shape[1] == 0
    (value,) = null.ambiguous
    assert 1e-6 < value < 1e-3


def test_vectors_that_are_not_integers_are_reported():
    null = integer_null_space(matrix_with_null_space([[1, -np.sqrt(2), 0, 0, 0]]))
    assert null.basis.shape[1] == 0
    assert len(null.non_integer) == 1


def test_the_sparsest_vectors_come_first():
    """Two gains share a reader: the sum of the two symmetries is in the space, but has more entries than each."""
    one, two = np.array([1, -1, 0, 0, 0.0]), np.array([0, 0, 1, -1, -1.0])
    basis = np.stack([one + two, two], axis=1)
    vectors = sparse_basis(basis, np.zeros((5, 0)))
    assert sorted(np.count_nonzero(v) for v in vectors) == [2, 3]
    assert same_span(np.stack(vectors), np.stack([one, two]))


def test_known_vectors_are_left_out():
    one, two = np.array([1, -1, 0, 0.0]), np.array([0, 0, 1, -1.0])
    (remaining,) = sparse_basis(np.stack([one + two, two], axis=1), one[:, None])
    np.testing.assert_array_equal(np.abs(remaining), np.abs(two))
    assert sparse_basis(one[:, None], one[:, None]) == []
