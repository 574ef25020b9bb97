"""Invariant causal prediction over all subsets of columns (Peters et al. 2016): a reference for few columns."""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from undertow import _validate as validate
from undertow.grouped.data import Moments, moments_of
from undertow.grouped.invariance import InvariantFit, invariance_test

__all__ = ["SubsetSearch", "all_subsets", "icp"]

MOST_COLUMNS = 14
"""2^14 subsets take about 20 s at 5,000 rows."""


@dataclass(frozen=True)
class SubsetSearch:
    """The subsets of columns whose linear model passes the test of invariance."""

    accepted: tuple[tuple[int, ...], ...]
    """The accepted subsets in the order of their size."""
    parents: Bool[np.ndarray, " d"]
    """A mask of the columns in every accepted subset, the result of invariant causal prediction.

    All False if no subset is accepted."""
    best: tuple[int, ...] | None
    """The accepted subset with the least pooled risk."""
    coef: Float[np.ndarray, " d"] | None
    """The coefficients of the refit on `best`, in the units of the data."""
    intercept: float | None


def icp(X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, *, level: float = 0.05) -> SubsetSearch:
    """Test every subset of the columns of X (at most 2^14 subsets) for invariance, by `invariance_test` at `level`.

    `parents` is often empty: a cause whose law is the same in all groups can be left out without breaking invariance.
    `best` is the reference for `InvariantRegressor`, which searches for the same subset without testing all subsets.

    >>> from undertow.grouped.icp import icp
    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("flip with covariate shift", seed=1, d=5, causes=2, children=2)
    >>> result = icp(design.X, design.y, design.groups)
    >>> print(result.parents, design.error(result.coef) < 0.05)
    [ True  True False False False] True
    """
    validate.finite_number("icp", "level", level, below=1.0, positive=True)
    moments, _, _ = moments_of("icp", X, y, groups)
    columns = moments.cross.shape[1]
    if columns > MOST_COLUMNS:
        raise ValueError(
            f"`icp`: `X` has {columns} columns, so 2^{columns} subsets; screen it to at most {MOST_COLUMNS} first."
        )
    return all_subsets(moments, np.arange(columns), level)


def all_subsets(moments: Moments, candidates: Int[np.ndarray, " k"], level: float) -> SubsetSearch:
    """Return the result of the search over subsets of the columns `candidates`."""
    accepted: list[tuple[int, ...]] = []
    best: tuple[float, tuple[int, ...], InvariantFit] | None = None
    width = moments.cross.shape[1]
    for size in range(len(candidates) + 1):
        for subset in itertools.combinations([int(j) for j in candidates], size):
            support = np.zeros(width, bool)
            support[list(subset)] = True
            fit = invariance_test(moments, support)
            if fit.p_value > level:
                accepted.append(subset)
                if best is None or fit.risk < best[0]:
                    best = (fit.risk, subset, fit)
    parents = np.zeros(width, bool)
    if best is None:
        return SubsetSearch((), parents, None, None, None)
    parents[list(set(accepted[0]).intersection(*accepted))] = True
    coef, intercept = moments.original(best[2].coef, best[2].intercept)
    return SubsetSearch(tuple(accepted), parents, best[1], coef, intercept)
