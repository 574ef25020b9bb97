"""The least value of a sum of exponentials, by Newton's method on the logarithm of the two sides of its derivative."""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

__all__ = ["Minimum", "minimise_exponentials"]

MAX_ITERATIONS = 100
RATIO_TOL = 1e-13
"""log(up/down) below this is rounding."""


class Minimum(NamedTuple):
    """Where sums of exponentials are least: (sums,)."""

    amount: np.ndarray
    """Infinite where all exponentials rise, or all fall; NaN where there are none."""
    log_ratio: np.ndarray
    """log(up/down) at amount 0, with `up` the sum of the falling parts of the derivative and `down` that of the rising
    ones; infinite or NaN like the amount."""


def minimise_exponentials(rates: np.ndarray, coefficients: np.ndarray) -> Minimum:
    """Return the s that minimise sum_j c_j exp(r_j s), with rates r (terms,) and c >= 0 of shape (terms, sums).

    The sum is convex. Its derivative vanishes where up(s) = sum_{r<0} |r| c exp(r s) equals down(s) =
    sum_{r>0} r c exp(r s). The logarithm of up/down falls at a slope between the sums of the least and of the largest
    |r| of both sides, which brackets the root; with one rate on each side the first step is exact.

    >>> import numpy as np
    >>> from undertow.torch.equilibrium.exponentials import minimise_exponentials
    >>> minimum = minimise_exponentials(np.array([-2.0, 4.0]), np.array([[6.0], [3.0]]))
    >>> print(minimum.amount, minimum.log_ratio)  # the derivative -12 exp(-2 s) + 12 exp(4 s) is zero at s = 0
    [0.] [0.]
    """
    sizes = np.abs(rates)
    rising = rates > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(sizes[:, None] * coefficients)
        up, down = _log_sum(logs[~rising]), _log_sum(logs[rising])
        first = up - down  # infinite where one side is zero, NaN where both are
    finite = np.isfinite(first)
    amount = first.copy()
    if finite.any():
        amount[finite] = _roots(rates, logs[:, finite], first[finite])
    return Minimum(amount, first)


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """Return the logarithm of the sum over terms; minus infinity where there are none."""
    return logsumexp(logs, axis=0) if len(logs) else np.full(logs.shape[1], -np.inf)


def _roots(rates: np.ndarray, logs: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return where log(up/down), which is `first` at 0, vanishes."""
    rising = rates > 0
    slowest = np.abs(rates[rising]).min() + np.abs(rates[~rising]).min()
    fastest = np.abs(rates[rising]).max() + np.abs(rates[~rising]).max()
    low, high = np.sort(np.stack([first / fastest, first / slowest]), axis=0)
    amount = (low + high) / 2
    for _ in range(MAX_ITERATIONS):
        terms = logs + rates[:, None] * amount
        up, down = _log_sum(terms[~rising]), _log_sum(terms[rising])
        ratio = up - down
        if np.all(np.abs(ratio) <= RATIO_TOL * (1 + np.abs(up))):
            break
        low, high = np.where(ratio > 0, amount, low), np.where(ratio < 0, amount, high)
        mean = lambda side, total: (np.abs(rates[side])[:, None] * np.exp(terms[side] - total)).sum(0)  # noqa: B023
        step = amount + ratio / (mean(~rising, up) + mean(rising, down))
        amount = np.where((step >= low) & (step <= high), step, (low + high) / 2)
    return amount
