"""The test of invariance for every subset of a few columns at once.

A refit needs second moments of (1, x, y) in each group, and the covariance of its conditions needs fourth moments. Both
are computed once for all subsets, so a subset costs a few products of small matrices and no pass over the rows.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from undertow.grouped.data import Moments
from undertow.grouped.flow import RIDGE
from undertow.grouped.invariance import CONVERGED, REWEIGHTINGS, information_criterion, least_noise, p_values

__all__ = ["SubsetTests", "screened_columns", "subset_tests"]

MOST_COLUMNS = 10
"""The largest number of columns whose subsets are tested: 1,024 subsets."""
MOST_TESTS = 2**15
"""The largest number of subsets times groups; with more than 32 groups, fewer columns are screened."""
ROWS_AT_ONCE = 10_000
"""Rows whose products are in memory at the same time."""


@dataclass(frozen=True)
class SubsetTests:
    """The tests of many supports; the fields are those of `InvariantFit`, with one entry per support."""

    support: Bool[np.ndarray, "m d"]
    statistic: Float[np.ndarray, " m"]
    freedom: Int[np.ndarray, " m"]
    p_value: Float[np.ndarray, " m"]
    risk: Float[np.ndarray, " m"]
    bic: Float[np.ndarray, " m"]


def screened_columns(moments: Moments) -> Int[np.ndarray, " k"]:
    """Return at most `MOST_COLUMNS` columns, those with the largest standardised coefficients of ridge regression."""
    most = min(MOST_COLUMNS, int(np.log2(max(MOST_TESTS / len(moments.sizes), 1))))
    return np.sort(np.argsort(-np.abs(moments.ridge(RIDGE)))[:most])


def subset_tests(moments: Moments, columns: Int[np.ndarray, " k"]) -> SubsetTests:
    """Return the statistic, p-value, risk and information criterion of every subset of `columns`.

    They agree with those of `invariance_test` if every group has more rows than the subset has columns. In smaller
    groups the degrees of freedom are sum_e min(n_e, |A| + 1) - |A| - 1.

    >>> import numpy as np
    >>> from undertow.grouped.data import moments_of
    >>> from undertow.grouped.designs import grouped_design
    >>> from undertow.grouped.subsets import subset_tests
    >>> design = grouped_design("shift", seed=0)
    >>> moments, _, _ = moments_of("fit", design.X, design.y, design.groups)
    >>> tests = subset_tests(moments, np.arange(7))
    >>> passing = tests.support[tests.p_value > 0.05]
    >>> print(len(tests.p_value), [np.flatnonzero(support).tolist() for support in passing])
    128 [[0, 1, 2, 3]]
    """
    inside = np.concatenate([[0], 1 + columns, [moments.joint.shape[1] - 1]])
    joint = moments.joint[:, inside[:, None], inside[None]]
    width = moments.cross.shape[1]
    subsets = list(_subsets_by_size(len(columns)))
    residual, noise = _refit(moments, joint, subsets)
    spread = _spreads(moments, inside, residual)
    parts, start = [], 0
    for chosen in subsets:
        of_size = slice(start, start := start + len(chosen))
        size = chosen.shape[1]
        statistic = _statistics(moments, joint, chosen, residual[of_size], spread[:, :, of_size])
        freedom = np.full(len(chosen), np.minimum(moments.sizes, size).sum() - size)
        support = np.zeros((len(chosen), width), bool)
        np.put_along_axis(support, columns[chosen[:, 1:] - 1], True, axis=1)
        bic = information_criterion(moments.sizes, noise[of_size], size - 1)
        parts.append((support, statistic, freedom, p_values(statistic, freedom), noise[of_size] @ moments.shares, bic))
    return SubsetTests(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _subsets_by_size(count: int) -> Iterator[Int[np.ndarray, "m size"]]:
    """Yield the subsets of 1, .., count of each size, each with a leading 0 for the constant."""
    for size in range(count + 1):
        yield np.array([(0, *subset) for subset in itertools.combinations(range(1, count + 1), size)])


def _fourth_moments(rows: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "pairs pairs"]:
    """Return E[z_i z_j z_k z_l] as a matrix with one row per pair i <= j and one column per pair k <= l."""
    first, second = np.triu_indices(rows.shape[1])
    total = np.zeros((len(first), len(first)))
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = rows[start : start + ROWS_AT_ONCE]
        products = block[:, first] * block[:, second]
        total += products.T @ products
    return total / len(rows)


def _eliminate(equations: Float[np.ndarray, "p q *batch"], count: int) -> Float[np.ndarray, "count *batch"]:
    """Eliminate the first `count` unknowns of positive definite equations in place, and return the pivots.

    A small multiple of the trace keeps the pivots positive if columns are linearly dependent. The batch is last: one
    product of whole arrays per unknown takes about half the time of one call of LAPACK per small matrix.
    """
    pivots = np.einsum("ii...->i...", equations[:count, :count])
    pivots += 1e-12 * pivots.sum(0)
    for i in range(count):
        factors = equations[i + 1 :, i] / equations[i, i]
        equations[i + 1 :, i + 1 :] -= factors[:, None] * equations[i, i + 1 :]
    return pivots


def _refit(
    moments: Moments, joint: Float[np.ndarray, "e q q"], subsets: list[Int[np.ndarray, "_ _"]]
) -> tuple[Float[np.ndarray, "m q"], Float[np.ndarray, "m e"]]:
    """Return y - b.z of generalised least squares as coefficients of (1, x, y), and its mean square in each group.

    All subsets are solved together, with the equation b = 0 for each column that is not in the subset. A small multiple
    of the identity keeps the solution bounded if columns are linearly dependent.
    """
    groups, q, _ = joint.shape
    flat, stacked = joint[:, :-1].reshape(groups, -1), joint.transpose(1, 0, 2).reshape(q, -1)
    least = least_noise(moments)
    used = np.concatenate([(chosen[:, :, None] == np.arange(q - 1)).any(1) for chosen in subsets]).astype(float)
    residual = np.zeros((len(used), q))
    residual[:, -1] = 1.0
    noise = np.ones((len(used), groups))
    active = np.arange(len(used))
    for _ in range(REWEIGHTINGS):
        inside, weights = used[active], moments.sizes / noise[active]
        equations = (weights / weights.sum(1, keepdims=True) @ flat).reshape(-1, q - 1, q)
        equations *= inside[:, :, None]
        matrix = equations[:, :, :-1]
        matrix *= inside[:, None, :]
        diagonal = np.einsum("mii->mi", matrix)
        diagonal += 1e-12 * diagonal.sum(1, keepdims=True) + (1 - inside)
        before, after = residual[active], np.ones((len(active), q))
        after[:, :-1] = -np.linalg.solve(matrix, equations[:, :, -1:])[:, :, 0]
        squares = np.einsum("mei,mi->me", (after @ stacked).reshape(-1, groups, q), after)
        residual[active], noise[active] = after, np.maximum(squares, least)
        active = active[np.abs(after - before).max(1) >= CONVERGED]
        if not active.size:
            break
    return residual, noise


def _spreads(
    moments: Moments, inside: Int[np.ndarray, " q"], residual: Float[np.ndarray, "m q"]
) -> Float[np.ndarray, "e pairs m"]:
    """Return E_e[r^2 z_i z_j] for the pairs i <= j of (1, x, y)."""
    first, second = np.triu_indices(len(inside))
    products = residual[:, first] * residual[:, second] * np.where(first == second, 1.0, 2.0)
    return np.stack([_fourth_moments(rows[:, inside]) for rows in moments.rows]) @ products.T


def _statistics(
    moments: Moments,
    joint: Float[np.ndarray, "e q q"],
    chosen: Int[np.ndarray, "m p"],
    residual: Float[np.ndarray, "m q"],
    spread: Float[np.ndarray, "e pairs m"],
) -> Float[np.ndarray, " m"]:
    """Return min_b sum_e n_e m_e(b)' S_e^-1 m_e(b), with S_e = E_e[r^2 z z'] at the refit.

    The minimum is taken over the difference between b and the refit, at which the conditions m_e are small: sums of
    large terms would cancel if the groups have almost no noise.
    """
    (groups, q, _), (m, p) = joint.shape, chosen.shape
    i, j = chosen.T[:, None], chosen.T[None]
    pair = np.zeros((q, q), int)
    pair[np.triu_indices(q)] = np.arange(q * (q + 1) // 2)
    # S_e beside E_e[z z'] and m_e at the refit, for every group and subset
    equations = np.empty((p, 2 * p + 1, groups, m))
    second, conditions = equations[:, p:-1], equations[:, -1]
    second[...] = np.moveaxis(joint[:, i, j], 0, 2)
    conditions[...] = np.moveaxis((joint @ residual.T)[:, chosen.T, np.arange(m)], 0, 1)
    covariance = np.moveaxis(spread[:, np.maximum(pair, pair.T)[i, j], np.arange(m)], 0, 2)
    equations[:, :p] = covariance + least_noise(moments)[:, None] * second
    pivots = _eliminate(equations, p)
    # with S = L D L', the columns beside S are now L^-1 (E[z z'], m)
    half = equations[:, p:]
    weighted = half * (moments.sizes[:, None] / pivots)[:, None]
    normal = np.einsum("iaem,ibem->abm", half, weighted)
    # what is left of sum_e n_e m_e' S_e^-1 m_e without b is the minimum over b
    _eliminate(normal, p)
    return np.maximum(normal[p, p], 0.0)
