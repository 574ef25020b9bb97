"""Standard errors against their closed forms."""

import math

import numpy as np
import pytest

from undertow.verification.statistics import mean, median, share, slope


def test_the_mean_of_four_numbers():
    """1, 2, 3, 4 have the variance 5/3, so the mean has the standard error sqrt(5/12)."""
    value, error = mean(np.array([1, 2, 3, 4]))
    assert (value, error) == (2.5, pytest.approx(math.sqrt(5 / 12)))
    assert type(value) is type(error) is float


def test_the_error_of_a_mean_falls_with_the_root_of_the_number_of_values():
    values = np.random.default_rng(0).normal(3.0, 2.0, 10_000)
    value, error = mean(values)
    assert abs(value - 3.0) < 4 * error
    assert error == pytest.approx(2.0 / 100, rel=0.05)


def test_the_error_of_a_median_is_the_asymptotic_one():
    """sigma sqrt(pi/(2 n)) for a Gaussian; four standard errors of 400 resamples are 4/sqrt(800) of it."""
    n = 2001
    value, error = median(np.random.default_rng(1).normal(3.0, 2.0, n))
    assert error == pytest.approx(2.0 * math.sqrt(math.pi / (2 * n)), rel=0.25)
    assert abs(value - 3.0) < 4 * error


def test_the_median_ignores_one_wild_value():
    """The median of 0 to 99 and a wild value is 50; its error is that of 101 uniform values, 101/(2 sqrt(101))."""
    value, error = median(np.append(np.arange(100.0), 1e9))
    assert value == 50.0
    assert error == pytest.approx(math.sqrt(101) / 2, rel=0.25)


def test_the_same_values_have_the_same_error():
    values = np.random.default_rng(2).normal(size=50)
    assert median(values) == median(values.copy())
    assert median(values)[1] != median(values, resamples=100)[1]


def test_equal_values_have_no_error():
    assert mean(np.full(5, 2.0)) == (2.0, 0.0)
    assert median(np.full(5, 2.0)) == (2.0, 0.0)
    assert median(np.array([2.0])) == (2.0, 0.0)


def test_a_missing_value_is_not_hidden():
    values = np.array([1.0, np.nan, 3.0])
    assert np.isnan(mean(values)).all()
    assert np.isnan(median(values)).all()


def test_the_share_of_flags():
    """The binomial standard error sqrt(p (1 - p)/n) for many trials."""
    flags = np.arange(40_000) % 4 == 0
    value, error = share(flags)
    assert value == 0.25
    assert error == pytest.approx(math.sqrt(0.25 * 0.75 / 40_000), rel=0.03)


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("count", [1, 10, 1000])
def test_the_error_of_a_share_is_never_zero(flag, count):
    value, error = share(np.full(count, flag))
    assert value == flag
    assert 0 < error <= 0.25
    assert type(value) is type(error) is float


def test_no_and_yes_are_mirror_images():
    flags = np.arange(30) < 7
    (few, few_error), (many, many_error) = share(flags), share(~flags)
    assert few + many == pytest.approx(1.0)
    assert few_error == pytest.approx(many_error)


def test_the_slope_of_three_points_is_that_of_weighted_least_squares():
    """numpy.polyfit minimises the same sum; the error is that of the slope with known errors of the points."""
    x, y, errors = np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.5, 3.0]), np.array([0.1, 0.2, 0.4])
    (expected, _), covariance = np.polyfit(x, y, 1, w=1 / errors, cov="unscaled")
    assert slope(x, y, errors) == pytest.approx((expected, math.sqrt(covariance[0, 0])))
