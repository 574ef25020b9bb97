"""Means, medians, shares and slopes with their standard errors."""

import numpy as np

from undertow.estimate import share_error, standard_error

__all__ = ["mean", "median", "share", "slope"]


def mean(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of independent values and its standard error."""
    values = np.asarray(values, float)
    return float(values.mean()), float(standard_error(values))


def median(values: np.ndarray, resamples: int = 400) -> tuple[float, float]:
    """Return the median and its bootstrap standard error; the same values give the same error."""
    values = np.asarray(values, float)
    drawn = np.random.default_rng(0).choice(values, (resamples, len(values)))
    return float(np.median(values)), float(np.median(drawn, axis=1).std(ddof=1))


def share(flags: np.ndarray) -> tuple[float, float]:
    """Return the share of true flags and its standard error, which is never 0 (`undertow.estimate.share_error`)."""
    flags = np.asarray(flags, bool)
    return float(flags.mean()), float(share_error(int(flags.sum()), flags.size))


def slope(x: np.ndarray, y: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Return the weighted least-squares slope of y on x, with its standard error."""
    w = 1 / errors**2
    centred = x - np.average(x, weights=w)
    total = np.sum(w * centred**2)
    return float(np.sum(w * centred * y) / total), float(1 / np.sqrt(total))
