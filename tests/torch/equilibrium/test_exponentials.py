"""Sums of exponentials: the minimum against a general minimiser, the closed form of two terms, and sums without one."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from undertow.torch.equilibrium.exponentials import minimise_exponentials

pytestmark = pytest.mark.torch

RATES = np.array([-4.0, -2.0, 2.0, 6.0])


@pytest.mark.parametrize("spread", [1.0, 30.0], ids=["near", "far"])
def test_the_minimum_is_that_of_a_general_minimiser(spread):
    generator = np.random.default_rng(0)
    coefficients = np.exp(spread * generator.standard_normal((4, 50)))
    minimum = minimise_exponentials(RATES, coefficients)
    for column, amount in zip(coefficients.T, minimum.amount, strict=True):
        total = lambda s, c=column: np.logaddexp.reduce(np.log(c) + RATES * s)  # the logarithm has the same minimum
        found = minimize_scalar(total, bracket=(-1, 1), tol=1e-12)
        assert total(amount) <= found.fun + 1e-12 * abs(found.fun)
        assert amount == pytest.approx(found.x, abs=1e-5 * (1 + abs(found.x)))  # of the order of the root of rounding
        terms = np.log(np.abs(RATES) * column) + RATES * amount
        up, down = np.logaddexp.reduce(terms[:2]), np.logaddexp.reduce(terms[2:])
        assert up == pytest.approx(down, abs=1e-12 * (1 + abs(up)))


def test_two_terms_have_a_closed_form():
    """a exp(-2 s) + b exp(2 s) is least at exp(4 s) = a/b, and the ratio of its sides is a/b."""
    a, b = np.array([3.0, 1e-200]), np.array([0.2, 1e200])
    minimum = minimise_exponentials(np.array([-2.0, 2.0]), np.stack([a, b]))
    np.testing.assert_allclose(minimum.amount, (np.log(a) - np.log(b)) / 4, rtol=1e-14)
    np.testing.assert_allclose(minimum.log_ratio, np.log(a) - np.log(b), rtol=1e-14)


def test_different_powers_have_a_closed_form_too():
    """a exp(-2 s) + b exp(4 s) is least at exp(6 s) = a/(2 b)."""
    a, b = np.array([3.0, 1e-9]), np.array([0.2, 1e9])
    minimum = minimise_exponentials(np.array([-2.0, 4.0]), np.stack([a, b]))
    np.testing.assert_allclose(minimum.amount, np.log(a / (2 * b)) / 6, rtol=1e-12)
    np.testing.assert_allclose(minimum.log_ratio, np.log(a / (2 * b)), rtol=1e-12)


def test_sums_without_a_minimum():
    """All exponentials fall, all rise, and there are none."""
    columns = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    minimum = minimise_exponentials(RATES, columns)
    assert minimum.amount[0] == np.inf
    assert minimum.amount[1] == -np.inf
    assert np.isnan(minimum.amount[2])
    one_sided = minimise_exponentials(np.array([-2.0, -4.0]), np.ones((2, 3)))
    assert np.all(one_sided.amount == np.inf)
