"""An estimator of a linear model that holds in every group, by a search over supports and a test of invariance."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from undertow import _validate as validate
from undertow.grouped import data as grouped
from undertow.grouped.data import PRESENT, Bootstrap, Moments
from undertow.grouped.flow import heterogeneity_flow
from undertow.grouped.invariance import InvariantFit, invariance_test
from undertow.grouped.subsets import screened_columns, subset_tests

if TYPE_CHECKING:
    import pandas

__all__ = ["InvariantRegressor"]

PENALTIES = np.geomspace(1.0, 1000.0, 13)
"""The penalties rho on gradients that differ between groups."""
NARROW = 0.1
"""A rejection is called narrow if its p-value is above this share of the level."""
BETTER = 3.0
"""A rejected model is reported if its information criterion is lower by more than this number of columns' penalties."""


class InvariantRegressor(RegressorMixin, BaseEstimator):
    """Linear regression on rows in groups (hospitals, years) with the variables that act alike in all groups.

    Candidates are supports, sets of columns, from two searches. The first takes every subset of the ten columns with
    the largest ridge coefficients (`undertow.grouped.subsets`). The second is the heterogeneity flow
    (`undertow.grouped.flow`) with 13 penalties on coordinates whose gradient differs between groups, from two starts
    each; it has no bound on the number of columns. Every support is refitted with one noise level per group and tested
    for invariance (`undertow.grouped.invariance`): in every group the residual must have mean zero and no correlation
    with the columns. Of those that pass, the one with the least Bayesian information criterion is chosen.

    If none passes, the candidate with the largest p-value is returned, not pooled least squares; `invariant_` is then
    False and a warning is issued. Warnings are also issued if the constant alone passes, and if a model that fits
    clearly better is rejected narrowly: the test rejects a true model with probability `level`. `verdict_` has the same
    words.

    The method works if children of y change between groups, by their relation to y, their noise or their means. If more
    than ten columns are causes or children of y, models that only shifts of means reveal as wrong are not found to be
    wrong. A model that passes the test need not be causal. The test allows noise that depends on x; the flow's V_j
    does not, which can change the proposed supports.

    **Arguments:** `level` of the test; `alpha`, the size of the cold start.

    **After `fit(X, y, groups)`:** `coef_`, `intercept_`, `support_` (a mask), `invariant_`, `p_value_`, `verdict_` (the
    result in words), `rejected_support_` (a mask of the better model that is rejected narrowly, or None), `rho_` (the
    penalty of the chosen model; NaN if the flow did not propose it), `pooled_coef_` (least squares), `path_` (a table
    of all candidates), `groups_`, `n_features_in_`, and `feature_names_in_` if the columns have names.

    >>> import undertow as ut
    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("shift", seed=0)
    >>> model = ut.InvariantRegressor().fit(design.X, design.y, design.groups)
    >>> print(model.report())
    >>> print((model.support_ & design.children).any(), design.error(model.coef_) < 0.05)
    False True
    """

    def __init__(self, *, level: float = 0.05, alpha: float = 1e-3):
        self.level = level
        self.alpha = alpha

    def fit(self, X: ArrayLike, y: ArrayLike | None, groups: ArrayLike | None = None) -> "InvariantRegressor":
        """Fit rows X of shape (rows, columns) to y; `groups` has a label (number or text) for every row."""
        self._check_settings()
        moments, self.groups_, names = grouped.moments_of("InvariantRegressor.fit", X, y, groups)
        self.n_features_in_ = moments.cross.shape[1]
        grouped.remember_names(self, names)
        choice = _choose(moments, float(self.alpha), float(self.level))
        chosen, fit = choice.chosen, choice.fit
        self.coef_, self.intercept_ = moments.original(fit.coef, fit.intercept)
        self.support_, self.p_value_, self.rho_ = chosen.support, fit.p_value, chosen.rho
        self.invariant_ = choice.invariant
        self.rejected_support_ = choice.narrow.support if choice.narrow else None
        self.pooled_coef_, _ = moments.original(moments.least_squares())
        self.path_ = _table(choice.candidates)
        labels = [str(j) for j in range(self.n_features_in_)] if names is None else list(names)
        self.verdict_, doubtful = _verdict(choice, float(self.level), labels)
        if doubtful:
            warnings.warn(f"`InvariantRegressor`: {self.verdict_}", stacklevel=2)
        return self

    def predict(self, X: ArrayLike) -> Float[np.ndarray, " rows"]:
        """Return X.coef_ + intercept_."""
        check_is_fitted(self)
        names_at_fit = getattr(self, "feature_names_in_", None)
        return grouped.predict_linear("InvariantRegressor.predict", X, self.coef_, self.intercept_, names_at_fit)

    def report(self) -> str:
        """Return the verdict, and the coefficients of the model."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", np.arange(self.n_features_in_).astype(str))
        rows = [("intercept", self.intercept_), *zip(names[self.support_], self.coef_[self.support_], strict=True)]
        width = max(len(str(name)) for name, _ in rows)
        return "\n".join([self.verdict_, *(f"  {name:<{width}}  {value: .4g}" for name, value in rows)])

    def bootstrap(
        self, X: ArrayLike, y: ArrayLike | None, groups: ArrayLike | None = None, *, repeats: int = 200, seed: int = 0
    ) -> Bootstrap:
        """Fit data sets of groups drawn with replacement, for intervals that include the choice of the support.

        A draw in which no model passes contributes the candidate with the largest p-value, as in `fit`. With few groups
        the intervals are a rough guide: five groups have only 126 different draws.
        """
        self._check_settings()
        moments, _, _ = grouped.moments_of("InvariantRegressor.bootstrap", X, y, groups)

        def estimate(drawn: Moments, repeat: int) -> tuple[np.ndarray, float]:
            fit = _choose(drawn, float(self.alpha), float(self.level)).fit
            return drawn.original(fit.coef, fit.intercept)

        return grouped.bootstrap("InvariantRegressor.bootstrap", moments, estimate, repeats, seed)

    def _check_settings(self) -> None:
        tiny = float(np.finfo(float).tiny)
        validate.finite_number("InvariantRegressor", "alpha", self.alpha, least=tiny, below=1.0)
        validate.finite_number("InvariantRegressor", "level", self.level, least=tiny, below=1.0)


@dataclass(frozen=True)
class _Candidate:
    source: str
    rho: float
    support: Bool[np.ndarray, " d"]
    statistic: float
    freedom: int
    p_value: float
    risk: float
    bic: float


@dataclass(frozen=True)
class _Choice:
    chosen: _Candidate
    fit: InvariantFit
    invariant: bool
    narrow: _Candidate | None
    """The best of the rejected models that fit clearly better and are rejected narrowly."""
    candidates: list[_Candidate]


def _flow_candidates(moments: Moments, alpha: float) -> list[_Candidate]:
    """Return one candidate for every penalty and start of the flow; a repeated support is refitted once."""
    rho = np.concatenate([PENALTIES, PENALTIES])
    warm = np.arange(len(rho)) >= len(PENALTIES)
    supports = np.abs(heterogeneity_flow(moments, rho, warm, alpha=alpha)) > PRESENT
    tested: dict[bytes, InvariantFit] = {}
    for support in supports:
        if support.tobytes() not in tested:
            tested[support.tobytes()] = invariance_test(moments, support)
    fits = [tested[support.tobytes()] for support in supports]
    return [
        _Candidate(
            "flow, warm" if h else "flow, cold", float(r), support,
            fit.statistic, fit.freedom, fit.p_value, fit.risk, fit.bic,
        )
        for r, h, support, fit in zip(rho, warm, supports, fits, strict=True)
    ]  # fmt: skip


def _subset_candidates(moments: Moments) -> list[_Candidate]:
    """Return one candidate for every subset of the screened columns."""
    tests = subset_tests(moments, screened_columns(moments))
    numbers = zip(*(x.tolist() for x in (tests.statistic, tests.freedom, tests.p_value, tests.risk, tests.bic)),
                  strict=True)  # fmt: skip
    return [_Candidate("subset", np.nan, support, *each) for support, each in zip(tests.support, numbers, strict=True)]


def _choose(moments: Moments, alpha: float, level: float) -> _Choice:
    """Return the passing candidate of least information criterion; if none passes, that of the largest p-value."""
    candidates = [*_flow_candidates(moments, alpha), *_subset_candidates(moments)]
    for candidate in _passing(candidates, level):
        fit = invariance_test(moments, candidate.support)
        # the tests of all subsets together are less accurate in groups with few rows
        if fit.p_value > level:
            return _Choice(candidate, fit, True, _narrowly_rejected(moments, candidates, candidate, level), candidates)
    closest = _least_contradicted(candidates)
    return _Choice(closest, invariance_test(moments, closest.support), False, None, candidates)


def _passing(candidates: Iterable[_Candidate], level: float) -> list[_Candidate]:
    """Return the candidates above the level, in the order of their information criterion."""
    return sorted((c for c in candidates if c.p_value > level), key=lambda c: c.bic)


def _least_contradicted(candidates: Iterable[_Candidate]) -> _Candidate:
    """Return the candidate with the largest p-value; p-values that underflow are ordered by statistic per freedom."""
    testable = (c for c in candidates if c.freedom > 0)
    return max(testable, key=lambda c: (c.p_value, -c.statistic / c.freedom))


def _narrowly_rejected(
    moments: Moments, candidates: Iterable[_Candidate], chosen: _Candidate, level: float
) -> _Candidate | None:
    bound = chosen.bic - BETTER * np.log(moments.sizes.sum())
    narrow = (c for c in candidates if NARROW * level < c.p_value <= level and c.bic < bound)
    return min(narrow, key=lambda c: c.bic, default=None)


def _verdict(choice: _Choice, level: float, names: list[str]) -> tuple[str, bool]:
    """Return the result in words, and whether it calls for a warning."""
    p_value = choice.fit.p_value
    columns = _columns(choice.chosen, names)
    if not choice.invariant:
        return (
            f"every one of the {len(choice.candidates)} candidates is rejected as different between groups, at level "
            f"{level:g}. The largest p-value is {p_value:.2g}, of {columns}. The coefficients are those of this model, "
            f"which is not established as invariant, and not those of pooled least squares (`pooled_coef_`). If a "
            f"true model is among the candidates, p-values as small as these have a probability of at most "
            f"{p_value:.2g}.",
            True,
        )
    passed = f"{columns} passes the test of invariance (p = {p_value:.2g}, level {level:g})."
    if choice.narrow is not None:
        return (
            f"{passed} However, {_columns(choice.narrow, names)} fits better and is rejected narrowly (p = "
            f"{choice.narrow.p_value:.2g}). The test rejects a true model with probability {level:g}, so this model "
            "may be the true one.",
            True,
        )
    if not choice.chosen.support.any():
        return f"{passed} No model with a column passes, so predictions are constant.", True
    return f"{passed[0].upper()}{passed[1:]}", False


def _columns(candidate: _Candidate, names: list[str]) -> str:
    inside = [names[j] for j in np.flatnonzero(candidate.support)]
    if not inside:
        return "the model without columns"
    shown = ", ".join(inside[:8]) + (f" and {len(inside) - 8} more" if len(inside) > 8 else "")
    return f"the model of {'column' if len(inside) == 1 else 'columns'} {shown}"


def _table(candidates: list[_Candidate]) -> "pandas.DataFrame":
    import pandas

    return pandas.DataFrame(
        [
            {
                "source": candidate.source,
                "rho": candidate.rho,
                "size": int(candidate.support.sum()),
                "p_value": candidate.p_value,
                "risk": candidate.risk,
                "bic": candidate.bic,
                "support": tuple(np.flatnonzero(candidate.support).tolist()),
            }
            for candidate in candidates
        ]
    )
