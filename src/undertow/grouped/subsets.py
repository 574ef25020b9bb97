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
    fourth = [_fourth_moments(rows[:, inside]) for rows in moments.rows]
    width = moments.cross.shape[1]
    subsets = list(_subsets_by_size(len(columns)))
    ends = np.cumsum([len(chosen) for chosen in subsets])[:-1]
    refits = zip(*(np.split(part, ends) for part in _refit(moments, joint, subsets)), strict=True)
    parts = []
    for chosen, (residual, noise) in zip(subsets, refits, strict=True):
        size = chosen.shape[1]
        statistic = _statistics(moments, joint, fourth, chosen, residual)
        freedom = np.full(len(chosen), np.minimum(moments.sizes, size).sum() - size)
        support = np.zeros((len(chosen), width), bool)
        np.put_along_axis(support, columns[chosen[:, 1:] - 1], True, axis=1)
        bic = information_criterion(moments.sizes, noise, size - 1)
        parts.append((support, statistic, freedom, p_values(statistic, freedom), noise @ moments.shares, bic))
    return SubsetTests(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _subsets_by_size(count: int) -> Iterator[Int[np.ndarray, "m size"]]:
    """Yield the subsets of 1, .., count of each size, each with a leading 0 for the constant."""
    for size in range(count + 1):
        yield np.array([(0, *subset) for subset in itertools.combinations(range(1, count + 1), size)])


def _fourth_moments(rows: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "q2 q2"]:
    """Return E[z_i z_j z_k z_l] as a matrix with one row per (i, j) and one column per (k, l)."""
    q = rows.shape[1]
    first, second = np.triu_indices(q)
    total = np.zeros((len(first), len(first)))
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = rows[start : start + ROWS_AT_ONCE]
        products = block[:, first] * block[:, second]
        total += products.T @ products
    pair = np.zeros((q, q), int)
    pair[first, second] = pair[second, first] = np.arange(len(first))
    return total[pair.ravel()[:, None], pair.ravel()[None]] / len(rows)


def _blocks(matrices: Float[np.ndarray, "*batch q q"], chosen: Int[np.ndarray, "m p"]) -> Float[np.ndarray, "m p p"]:
    """Return the rows and columns `chosen` of one matrix, or of one matrix per subset."""
    each = np.broadcast_to(matrices, (len(chosen), *matrices.shape[-2:]))
    return each[np.arange(len(chosen))[:, None, None], chosen[:, :, None], chosen[:, None, :]]


def _solve(
    matrix: Float[np.ndarray, "m p p"],
    target: Float[np.ndarray, "m p k"],
    diagonal: Float[np.ndarray, "m p"] | float = 0.0,
) -> Float[np.ndarray, "m p k"]:
    """Return a solution with the matrix plus `diagonal`; the columns of the matrix may be linearly dependent.

    A small multiple of the identity keeps the solution bounded then.
    """
    scale = np.trace(matrix, axis1=1, axis2=2)[:, None]
    return np.linalg.solve(matrix + (1e-12 * scale + diagonal)[:, :, None] * np.eye(matrix.shape[1]), target)


def _refit(
    moments: Moments, joint: Float[np.ndarray, "e q q"], subsets: list[Int[np.ndarray, "_ _"]]
) -> tuple[Float[np.ndarray, "m q"], Float[np.ndarray, "m e"]]:
    """Return y - b.z of generalised least squares as coefficients of (1, x, y), and its mean square in each group.

    All subsets are solved together, with the equation b = 0 for each column that is not in the subset.
    """
    flat = joint.reshape(len(joint), -1)
    least = least_noise(moments)
    last = joint.shape[1] - 1
    used = np.concatenate([(chosen[:, :, None] == np.arange(last)).any(1) for chosen in subsets])
    residual = np.zeros((len(used), last + 1))
    residual[:, -1] = 1.0
    noise = np.ones((len(used), len(joint)))
    active = np.arange(len(used))
    for _ in range(REWEIGHTINGS):
        inside, weights = used[active], moments.sizes / noise[active]
        pooled = (weights / weights.sum(1, keepdims=True) @ flat).reshape(-1, *joint.shape[1:])
        matrix = np.where(inside[:, :, None] & inside[:, None, :], pooled[:, :-1, :-1], 0.0)
        target = np.where(inside, pooled[:, :-1, -1], 0.0)[:, :, None]
        after = residual[active]
        after[:, :-1] = -_solve(matrix, target, np.where(inside, 0.0, 1.0))[:, :, 0]
        moved = np.abs(after - residual[active]).max(1)
        residual[active], noise[active] = after, np.maximum(_outer(after) @ flat.T, least)
        active = active[moved >= CONVERGED]
        if not active.size:
            break
    return residual, noise


def _outer(residual: Float[np.ndarray, "m q"]) -> Float[np.ndarray, "m q2"]:
    return (residual[:, :, None] * residual[:, None, :]).reshape(len(residual), -1)


def _statistics(
    moments: Moments,
    joint: Float[np.ndarray, "e q q"],
    fourth: list[Float[np.ndarray, "q2 q2"]],
    chosen: Int[np.ndarray, "m p"],
    residual: Float[np.ndarray, "m q"],
) -> Float[np.ndarray, " m"]:
    """Return min_b sum_e n_e m_e(b)' S_e^-1 m_e(b), with S_e = E_e[r^2 z z'] at the refit.

    The minimum is taken over the difference between b and the refit, at which the conditions m_e are small: sums of
    large terms would cancel if the groups have almost no noise.
    """
    outer, least = _outer(residual), least_noise(moments)
    m, p = chosen.shape
    hessian, linear, constant = np.zeros((m, p, p)), np.zeros((m, p, 1)), np.zeros(m)
    for e, size in enumerate(moments.sizes):
        second = _blocks(joint[e], chosen)
        conditions = np.take_along_axis(residual @ joint[e], chosen, axis=1)[:, :, None]
        spread = _blocks((outer @ fourth[e]).reshape(-1, *joint.shape[1:]), chosen) + least[e] * second
        weighted = size * _solve(spread, np.concatenate([second, conditions], axis=2))
        hessian += second @ weighted[:, :, :-1]
        linear += second @ weighted[:, :, -1:]
        constant += np.sum(conditions * weighted[:, :, -1:], axis=(1, 2))
    return np.maximum(constant - np.sum(linear * _solve(hessian, linear), axis=(1, 2)), 0.0)
