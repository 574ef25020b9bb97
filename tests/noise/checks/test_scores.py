"""z-scores: standard normal for skewed values, for an estimated reference, and for values that do not vary."""

import numpy as np
import pytest
from scipy.stats import norm

from undertow.noise.checks.scores import (
    Cumulants,
    autocorrelation_scores,
    correct_skewness,
    cumulants_of_mean,
    largest_score,
    scores,
)

COUNT, REPEATS = 1000, 20_000
TAIL = 2e-3
"""The probability of each tail in the tests of the level: 40 of the repeats, with a standard deviation of 6.3."""

LAWS = {
    "normal": (lambda rng, shape: rng.normal(size=shape), 0.0),
    "exponential": (lambda rng, shape: rng.exponential(size=shape), 1.0),
    "squares of normals": (lambda rng, shape: rng.normal(size=shape) ** 2, 1.0),
    "a rare event": (lambda rng, shape: 1.0 * (rng.random(shape) < 0.03), 0.03),
}


def tails(z: np.ndarray) -> tuple[int, int]:
    limit = norm.isf(TAIL)
    return int((z < -limit).sum()), int((z > limit).sum())


def repeated(law: str) -> tuple[np.ndarray, np.ndarray]:
    """Return z-scores of many samples of COUNT values each, with and without the correction for skewness."""
    rng, (draw, expected) = np.random.default_rng(0), LAWS[law]
    corrected, plain = [], []
    for _ in range(20):
        values = draw(rng, (COUNT, REPEATS // 20))
        corrected.append(scores(values, np.full(values.shape[1], expected), Cumulants.exact()))
        plain.append((values.mean(axis=0) - expected) / (values.std(axis=0, ddof=1) / np.sqrt(COUNT)))
    return np.concatenate(corrected), np.concatenate(plain)


@pytest.mark.parametrize("law", LAWS)
def test_both_tails_have_their_probability(law):
    """Within five standard deviations of the count, and the error of the next order of the expansion."""
    low, high = tails(repeated(law)[0])
    least = 0 if law == "a rare event" else 15  # a count has a tail in steps
    assert least < low < 72
    assert least < high < 72


def test_without_the_correction_the_tails_are_wrong():
    low, high = tails(repeated("squares of normals")[1])
    assert low > 80
    assert high < 20


def test_an_estimated_reference_has_its_own_error():
    """The expected value is the mean of 250 other values of the same law; the skewness of both is opposite."""
    rng = np.random.default_rng(1)
    values, others = rng.exponential(size=(COUNT, 4000)), rng.exponential(size=(250, 4000))
    z = scores(values, others.mean(axis=0), cumulants_of_mean(others))
    assert abs(z.std() - 1) < 0.05
    assert abs(np.mean(z**3)) < 0.2
    by_law = scores(values, others.mean(axis=0), cumulants_of_mean(values, 250))
    assert abs(by_law.std() - 1) < 0.05
    ignored = scores(values, others.mean(axis=0), Cumulants.exact())
    assert ignored.std() > 2


def test_cumulants_of_a_mean():
    """The exponential law has variance 1 and third cumulant 2; those of a mean of n are divided by n and n^2."""
    values = np.random.default_rng(2).exponential(size=(400_000, 1))
    own = cumulants_of_mean(values, 10)
    np.testing.assert_allclose(own.variance, 1 / 10, rtol=0.02)
    np.testing.assert_allclose(own.third, 2 / 100, rtol=0.1)
    np.testing.assert_allclose(cumulants_of_mean(values).variance, own.variance * 10 / 400_000)
    total = own.plus(Cumulants(1.0, 2.0))
    np.testing.assert_allclose([total.variance, total.third], [1 + own.variance, 2 + own.third])


def test_the_transformation_increases():
    t = np.linspace(-40, 40, 401)
    for skewness in (-1.0, -0.1, 0.0, 0.3):
        corrected = correct_skewness(t, np.full_like(t, skewness))
        assert np.all(np.diff(corrected) > 0)
    np.testing.assert_array_equal(correct_skewness(t, np.zeros_like(t)), t)


def test_constant_values():
    """No variance: equal values have z = 0, others an infinite z, unless rounding or the least variance explain it."""
    values = np.full((100, 1), 1.0)
    assert scores(values, np.array([1.0]), Cumulants.exact()) == 0
    assert np.isposinf(scores(values, np.array([0.5]), Cumulants.exact()))
    assert np.isneginf(scores(values, np.array([1.5]), Cumulants.exact()))
    np.testing.assert_allclose(scores(values, np.array([0.5]), Cumulants.exact(), rounding=0.25), 2.0)
    np.testing.assert_allclose(scores(values, np.array([0.5]), Cumulants.exact(), 0.0625), 2.0)


def test_nan_stays_nan():
    assert np.isnan(scores(np.full((100, 1), np.nan), np.array([1.0]), Cumulants.exact()))


def test_autocorrelation():
    rng = np.random.default_rng(3)
    independent = autocorrelation_scores(rng.standard_t(3, size=(COUNT, 4000)))
    assert abs(independent.std() - 1) < 0.05
    assert max(tails(independent)) < 24  # 8 are expected
    base = rng.normal(size=(COUNT, 3))
    # every second product is x^2, with the mean 1 and the second moment 3; the others have 0 and 1
    np.testing.assert_allclose(autocorrelation_scores(np.repeat(base, 2, axis=0)), np.sqrt(COUNT) / 2, rtol=0.15)
    assert np.all(autocorrelation_scores(np.ones((COUNT, 2))) == 0)
    assert np.all(np.abs(autocorrelation_scores(1e-8 * base, 1e-7)) < 0.1)


def test_the_limit_is_that_of_all_statistics_together():
    """The largest of 50 standard normals exceeds the limit at level 0.1 in at most a tenth of the repeats."""
    z = np.abs(np.random.default_rng(4).normal(size=(20_000, 50))).max(axis=1)
    share = np.mean(z > largest_score(0.1, 50))
    assert 0.085 < share < 0.105
    assert largest_score(0.1, 0) == largest_score(0.1, 1)
