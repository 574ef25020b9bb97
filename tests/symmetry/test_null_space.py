"""Numerical null spaces and their reduced form."""

import numpy as np
import pytest

from undertow.symmetry.null_space import echelon, null_space, signs


def test_echelon_form_of_a_matrix_whose_first_columns_are_zero():
    rows = np.array([[0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 2.0, 5.0]])
    np.testing.assert_allclose(echelon(rows), np.eye(4)[2:], atol=1e-12)


def test_echelon_form_keeps_the_row_space_and_has_unit_pivots():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 6))
    rows = np.vstack([rows, rows[0] - 2 * rows[1]])  # a dependent row
    reduced = echelon(rows)
    assert reduced.shape == (3, 6)
    np.testing.assert_allclose(reduced[:, :3], np.eye(3), atol=1e-12)
    assert np.linalg.matrix_rank(np.vstack([rows, reduced]), tol=1e-9) == 3


@pytest.mark.parametrize("unit", [1e-9, 1e-6, 1.0, 1e4, 1e8])
def test_the_null_space_solves_its_equations_in_any_unit(unit):
    """Three equations for five unknowns of different sizes, and a column of zeros."""
    rng = np.random.default_rng(1)
    scale = unit * np.array([1.0, 1e-2, 10.0, 1.0, 3.0, 0.0])
    rows = rng.normal(size=(3, 6)) * scale
    vectors = null_space(rows, scale, 1e-12)
    assert vectors.shape == (2, 6)
    np.testing.assert_allclose(vectors[:, :2], np.eye(2), atol=1e-12)
    np.testing.assert_allclose(rows @ vectors.T / (np.abs(rows) @ np.abs(vectors.T)), 0, atol=1e-10)
    np.testing.assert_array_equal(vectors[:, -1], 0)


def test_columns_of_very_different_scales_keep_their_null_vectors():
    """x0 = x1 and x2 = x3, where the columns of the two pairs differ by a factor of 1e7."""
    rows = np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1e7, -1e7]])
    vectors = null_space(rows, np.array([1.0, 1.0, 1e7, 1e7]), 1e-12)
    np.testing.assert_allclose(vectors, [[1, 1, 0, 0], [0, 0, 1, 1]], atol=1e-12)


def test_a_matrix_of_zeros_has_no_null_space():
    assert null_space(np.zeros((3, 2)), np.zeros(2), 1e-12).shape == (0, 2)


def test_signs_are_those_of_multiples_of_plus_and_minus_one():
    assert signs(np.array([2.0, -2.0, 0.0])) == (1, -1, 0)
    assert signs(np.array([2.0, -2.0001, 1e-5])) == (1, -1, 0)
    assert signs(np.array([2.0, -1.0, 0.0])) is None
