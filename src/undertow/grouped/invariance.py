"""A test whether a linear model is the same in every group: a weighted refit and a test for heteroscedastic noise."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from undertow.grouped.data import Moments

__all__ = ["InvariantFit", "information_criterion", "invariance_test", "least_noise", "p_values"]

REWEIGHTINGS = 50
"""The largest number of reweightings of the refit; a few are enough unless the groups differ strongly."""
CONVERGED = 1e-7
"""The change of a standardised coefficient below which the refit stops; sampling errors are far larger."""


@dataclass(frozen=True)
class InvariantFit:
    """The refit of one support in standardised units, and its test of invariance."""

    coef: Float[np.ndarray, " d"]
    """Zero outside the support."""
    intercept: float
    statistic: float
    """The test statistic; chi-squared with `freedom` degrees of freedom if the model is invariant."""
    freedom: int
    p_value: float
    """NaN if `freedom` is 0: the groups then have too few rows to test this support."""
    risk: float
    """The pooled mean squared error, in units of the variance of y."""
    bic: float
    """The Bayesian information criterion of the refit; see `information_criterion`."""


def information_criterion(
    sizes: Int[np.ndarray, " e"], noise: Float[np.ndarray, "*m e"], columns: int
) -> Float[np.ndarray, "*m"]:
    """Return sum_e n_e log R_e + |A| log n, for models of normal noise with one variance R_e per group."""
    return np.asarray(np.log(noise) @ sizes + columns * np.log(sizes.sum()))


def least_noise(moments: Moments) -> Float[np.ndarray, " e"]:
    """Return a lower bound on the noise of each group: a group fitted to rounding would otherwise have all weight."""
    return 1e-12 * np.maximum(moments.power, 1e-12)


def invariance_test(moments: Moments, support: Bool[np.ndarray, " d"]) -> InvariantFit:
    """Refit y on the columns of `support` (and a constant) in all groups together, and test the fit in every group.

    The refit is generalised least squares with one noise level per group: weights n_e/R_e, R_e = E_e[r^2], iterated.
    The null hypothesis is E_e[z r] = 0 in every group, z = (1, x_A). With m_e(b) = E_e[z (y - z.b)] and
    S_e = E_e[r^2 z z'] at the refit, min_b sum_e n_e m_e(b)' S_e^-1 m_e(b) is chi-squared with
    (groups - 1)(|A| + 1) degrees of freedom (the J test of two-step GMM; Hansen 1982). S_e is estimated from the rows
    of its group, so the noise may depend on x and its level may differ between groups; rows must be independent. In
    groups with few rows per condition the test is conservative: it rejects less often than its level.

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
    least = least_noise(moments)
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
        p_value=float(p_values(statistic, freedom)),
        risk=float(moments.shares @ noise),
        bic=float(information_criterion(moments.sizes, noise, len(chosen) - 1)),
    )


def _overidentification(
    moments: Moments, chosen: Int[np.ndarray, " p"], beta: Float[np.ndarray, " p"], least: Float[np.ndarray, " e"]
) -> tuple[float, int]:
    """Return min_b sum_e n_e m_e(b)' S_e^-1 m_e(b) and its degrees of freedom; `least` bounds the noise of a group."""
    second = moments.joint[:, chosen[:, None], chosen[None]]
    cross = moments.joint[:, chosen, -1]
    spread = least[:, None, None] * second
    for e, rows in enumerate(moments.rows):
        z = rows[:, chosen]
        scores = z * (rows[:, -1] - z @ beta)[:, None]
        spread[e] += scores.T @ scores / len(rows)
    # a group with few rows spans only a part of the directions
    values, vectors = np.linalg.eigh(spread)
    spanned = values > 1e-10 * values[:, -1:]
    root = np.sqrt(np.where(spanned, moments.sizes[:, None] / np.where(spanned, values, 1.0), 0.0))
    half = root[:, :, None] * vectors.transpose(0, 2, 1)
    slopes, target = (half @ second).reshape(-1, len(chosen)), np.einsum("ekp,ep->ek", half, cross).ravel()
    best, _, rank, _ = np.linalg.lstsq(slopes, target, rcond=None)
    return float(np.sum((target - slopes @ best) ** 2)), int(spanned.sum() - rank)


def p_values(
    statistic: float | Float[np.ndarray, " m"], freedom: int | Int[np.ndarray, " m"]
) -> Float[np.ndarray, "*m"]:
    """Return the probability of a larger chi-squared variable; NaN without degrees of freedom."""
    from scipy.special import chdtrc

    return np.where(np.asarray(freedom) > 0, chdtrc(np.maximum(freedom, 1), statistic), np.nan)
