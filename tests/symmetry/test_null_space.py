"""Numerical null spaces and their reduced form."""

import numpy as np

from undertow.symmetry.null_space import echelon


def test_echelon_form_when_the_first_columns_are_zero():
    rows = np.array([[0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 2.0, 5.0]])
    np.testing.assert_allclose(echelon(rows), np.eye(4)[2:], atol=1e-12)
