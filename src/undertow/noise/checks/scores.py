"""z-scores of the mean of independent values, with a correction for skewness and for an estimated reference."""

from typing import NamedTuple

import numpy as np
from scipy import special

__all__ = ["Cumulants", "autocorrelation_scores", "correct_skewness", "cumulants_of_mean", "largest_score", "scores"]


class Cumulants(NamedTuple):
    """The second and third cumulant of an estimate: its variance, and its skewness times its variance^(3/2)."""

    variance: np.ndarray | float
    third: np.ndarray | float

    @staticmethod
    def exact() -> "Cumulants":
        """Return the cumulants of a number that is known exactly."""
        return Cumulants(0.0, 0.0)

    def plus(self, other: "Cumulants") -> "Cumulants":
        """Return the cumulants of the sum of two independent estimates."""
        return Cumulants(self.variance + other.variance, self.third + other.third)


def cumulants_of_mean(values: np.ndarray, samples: int | None = None) -> Cumulants:
    """Return the cumulants of the mean of `samples` (None: all) values with the law of `values`, rows of draws."""
    samples = len(values) if samples is None else samples
    centred = values - values.mean(axis=0)
    variance = (centred**2).sum(axis=0) / max(len(values) - 1, 1)
    return Cumulants(variance / samples, (centred**3).mean(axis=0) / samples**2)


def correct_skewness(t: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """Return Hall's transformation of a studentised estimate with the given skewness, which is nearly normal.

    g(t) = t + s t^2/3 + s^2 t^3/27 + s/6 (P. Hall, On the removal of skewness by transformation, 1992). It increases
    in t. Without it, the mean of values with a long right tail lies below its limits too often, because a sample
    without the tail has a small standard deviation as well.

    >>> import numpy as np
    >>> from undertow.noise.checks.scores import correct_skewness
    >>> print(correct_skewness(np.array([-4.0, 0.0, 4.0]), np.array([0.1, 0.0, 0.1])).round(2))
    [-3.47  0.    4.57]
    """
    return t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6


def scores(
    values: np.ndarray,
    expected: np.ndarray,
    reference: Cumulants,
    least_variance: np.ndarray | float = 0.0,
    rounding: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Return the z-scores of the means of the columns of `values` (one row per draw) against `expected`.

    `reference` has the cumulants of `expected`, which may be an estimate itself. `least_variance` is a lower bound of
    the variance of the mean, for values whose sample variance is too small; `rounding` is the rounding error of the
    mean or of `expected`.
    """
    own = cumulants_of_mean(values)
    variance = np.maximum(own.variance, least_variance) + reference.variance + np.square(rounding)
    difference = values.mean(axis=0) - expected
    error = np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(difference == 0, 0.0, difference / error)
        skewness = np.where(error > 0, (own.third - reference.third) / error**3, 0.0)
    return np.where(np.isfinite(t), correct_skewness(np.where(np.isfinite(t), t, 0.0), skewness), t)


def autocorrelation_scores(values: np.ndarray, rounding: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the z-scores of the products of consecutive values of each column, which are zero on average.

    The sum of the products is divided by the root of the sum of their squares, so that heavy tails do not matter.
    """
    centred = values - values.mean(axis=0)
    products = centred[1:] * centred[:-1]
    error = np.sqrt((products**2).sum(axis=0) + (len(values) * np.square(rounding)) ** 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error > 0, products.sum(axis=0) / error, 0.0)


def largest_score(false_alarm: float, statistics: int) -> float:
    """Return a limit for |z| such that any of `statistics` standard normals exceeds it with at most `false_alarm`.

    This is Bonferroni's bound: the statistics may depend on each other.

    >>> from undertow.noise.checks.scores import largest_score
    >>> print(round(largest_score(0.05, 1), 2), round(largest_score(1e-4, 100), 2))
    1.96 4.89
    """
    return float(-special.ndtri(false_alarm / (2 * max(statistics, 1))))
