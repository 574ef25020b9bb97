"""Is a linear model the same in every group? A weighted refit and a test that allows for noise that depends on x."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from undertow.grouped.data import Moments

__all__ = ["InvariantFit", "invariance_test"]

REWEIGHTINGS = 50
"""Of the refit at most; it converges in a few unless groups differ wildly."""
CONVERGED = 1e-7
"""Change of a standardised coefficient that ends the refit; sampling errors are far larger."""


@dataclass(frozen=True)
class InvariantFit:
    """The refit of one support, in standardised units, and how well it holds in every group."""

    coef: Float[np.ndarray, " d"]
    """Zero outside the support."""
    intercept: float
    statistic: float
    """Of the test; chi-squared with `freedom` degrees of freedom if the model is invariant."""
    freedom: int
    p_value: float
    """NaN where `freedom` is 0: then the groups have too few rows for this support to be tested."""
    risk: float
    """Pooled mean squared error; 1 is that of the mean of y."""


def invariance_test(moments: Moments, support: Bool[np.ndarray, " d"]) -> InvariantFit:
    """Refits y on the columns of `support` (and a constant) in all groups together, and tests that it fits each.

    The refit is generalised least squares with one noise level a group: weights n_e/R_e, R_e = E_e[r^2], iterated.
    The test asks whether E_e[z r] = 0 in every group, z = (1, x_A). With m_e(b) = E_e[z (y - z.b)] and
    S_e = E_e[r^2 z z'] at the refit, min_b sum_e n_e m_e(b)' S_e^-1 m_e(b) is chi-squared with
    (groups - 1)(|A| + 1) degrees of freedom (the J test of two-step GMM; Hansen 1982). S_e is estimated from the rows
    of its group, so the noise may depend on x and its level may differ between groups; rows must be independent. In
    groups with few rows per condition the test rejects less often than its level says.

    >>> import numpy as np
    >>> from undertow.grouped.data import moments_of
    >>> from undertow.grouped.invariance import invariance_test
    >>> rng = np.random.default_rng(0)
    >>> x, groups = rng.normal(size=(400, 1)), np.repeat([0, 1], 200)
    >>> y = x[:, 0] + rng.normal(size=400) * np.where(groups, 2.0, 0.5)
    >>> moments, _, _ = moments_of("fit", x, y, groups)
    >>> fit = invariance_test(moments, np.array([True]))
    >>> print(fit.freedom, fit.p_value > 0.05)
    2 True
    """
    chosen = np.concatenate([[0], 1 + np.flatnonzero(support)])
    second = moments.joint[:, chosen[:, None], chosen[None]]
    cross = moments.joint[:, chosen, -1]
    flat = second.reshape(len(second), -1)
    sizes = moments.sizes.astype(float)
    # a model that fits a group to rounding would have all the weight
    least = 1e-12 * np.maximum(moments.power, 1e-12)
    weights = moments.shares
    beta = np.zeros(len(chosen))
    for _ in range(REWEIGHTINGS):
        before = beta
        beta = np.linalg.lstsq((weights @ flat).reshape(second.shape[1:]), weights @ cross, rcond=None)[0]
        noise = np.maximum(moments.power - 2 * cross @ beta + ((second @ beta) @ beta), least)
        weights = sizes / noise
        weights = weights / weights.sum()
        if np.abs(beta - before).max() < CONVERGED:
            break
    statistic, freedom = _overidentification(moments, chosen, beta, least)
    coef = np.zeros(len(support))
    coef[support] = beta[1:]
    return InvariantFit(
        coef=coef,
        intercept=float(beta[0]),
        statistic=statistic,
        freedom=freedom,
        p_value=_p_value(statistic, freedom),
        risk=float(moments.shares @ noise),
    )


def _overidentification(
    moments: Moments, chosen: Int[np.ndarray, " p"], beta: Float[np.ndarray, " p"], least: Float[np.ndarray, " e"]
) -> tuple[float, int]:
    """min_b sum_e n_e m_e(b)' S_e^-1 m_e(b) and its degrees of freedom; `least` is the smallest noise of a group."""
    second = moments.joint[:, chosen[:, None], chosen[None]]
    cross = moments.joint[:, chosen, -1]
    spread = least[:, None, None] * second
    for e, rows in enumerate(moments.rows):
        z = rows[:, chosen]
        scores = z * (rows[:, -1] - z @ beta)[:, None]
        spread[e] += scores.T @ scores / len(rows)
    # the directions a group has: all, unless it has few rows
    values, vectors = np.linalg.eigh(spread)
    there = values > 1e-10 * values[:, -1:]
    root = np.sqrt(np.where(there, moments.sizes[:, None] / np.where(there, values, 1.0), 0.0))
    half = root[:, :, None] * vectors.transpose(0, 2, 1)
    slopes, target = (half @ second).reshape(-1, len(chosen)), np.einsum("ekp,ep->ek", half, cross).ravel()
    best, _, rank, _ = np.linalg.lstsq(slopes, target, rcond=None)
    return float(np.sum((target - slopes @ best) ** 2)), int(there.sum() - rank)


def _p_value(statistic: float, freedom: int) -> float:
    from scipy.special import chdtrc

    return float(chdtrc(freedom, statistic)) if freedom > 0 else math.nan
