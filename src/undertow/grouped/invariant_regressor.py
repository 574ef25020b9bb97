"""An estimator of a linear model that holds in every group, by a search over supports and a test of invariance."""

import warnings
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from undertow import _validate as validate
from undertow._calls import checked_call
from undertow.grouped import data as grouped
from undertow.grouped.data import PRESENT, Bootstrap, Moments
from undertow.grouped.flow import heterogeneity_flow
from undertow.grouped.invariance import InvariantFit, invariance_test
from undertow.grouped.subsets import SubsetTests, screened_columns, subset_tests

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
    """Linear regression on rows in groups (hospitals, years) with variables whose effect is equal in all groups.

    Candidates are supports, sets of columns, from two searches. The first takes every subset of the ten columns with
    the largest ridge coefficients (`undertow.grouped.subsets`). The second is the heterogeneity flow
    (`undertow.grouped.flow`) with 13 penalties on coordinates whose gradient differs between groups, from two starts
    each; it has no bound on the number of columns. Every support is refitted with one noise level per group and tested
    for invariance (`undertow.grouped.invariance`): in every group the residual must have mean zero and no correlation
    with the columns. Of those that pass, the one with the least Bayesian information criterion is chosen.

    If none passes, the candidate with the largest p-value is returned, not pooled least squares; `invariant_` is then
    False and a warning is issued. Warnings are also issued if the groups do not differ, so that no candidate is
    rejected, if the constant is chosen, and if a model that fits clearly better is rejected narrowly: the test rejects
    a true model with probability `level`. `verdict_` contains the text of the warning.

    The method works if children of y change between groups, by their relation to y, their noise or their means. Under
    shifts of means it works only if the causes are among the ten screened columns and there are enough groups (see the
    benchmark in the documentation). A model that passes the test need not be causal. The test allows noise that depends
    on x; the flow's V_j does not, which can change the proposed supports.

    **Arguments:** `level`, that of the test; `alpha`, the size u = v of the cold start of the flow.

    **After `fit(X, y, groups)`:** `coef_`, `intercept_`, `support_` (a mask), `invariant_`, `p_value_`,
    `groups_differ_` (whether any candidate is rejected, with Bonferroni's correction for their number), `verdict_` (the
    result in words), `rejected_support_` (a mask of the better model that is rejected narrowly, or None), `rho_` (the
    penalty of the chosen model; NaN if the flow did not propose it), `pooled_coef_` (least squares), `path_` (a table
    of all candidates), `groups_`, `n_features_in_`, and `feature_names_in_` if the columns have names.

    >>> import undertow as ut
    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("shift", seed=0)
    >>> model = ut.InvariantRegressor().fit(design.X, design.y, design.groups)
    >>> print(model.invariant_, (model.support_ & design.children).any(), design.error(model.coef_) < 0.05)
    True False True
    """

    @checked_call("InvariantRegressor")
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
        tests = choice.candidates.tests
        self.coef_, self.intercept_ = moments.original(choice.fit.coef, choice.fit.intercept)
        self.support_, self.p_value_ = tests.support[choice.chosen], choice.fit.p_value
        # criteria of equal supports differ by rounding; the penalties come first
        same = (tests.support == self.support_).all(1)
        self.rho_ = float(choice.candidates.rho[same.argmax()])
        self.invariant_, self.groups_differ_ = choice.invariant, choice.groups_differ
        self.rejected_support_ = None if choice.narrow is None else tests.support[choice.narrow]
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
        """Fit `repeats` data sets of groups drawn with replacement, for intervals that include the choice of support.

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
        for name, value in (("alpha", self.alpha), ("level", self.level)):
            validate.finite_number("InvariantRegressor", name, value, below=1.0, positive=True)


@dataclass(frozen=True)
class _Candidates:
    source: list[str]
    rho: Float[np.ndarray, " m"]
    tests: SubsetTests
    fits: dict[bytes, InvariantFit]
    """The refits of the supports of the flow."""

    def fit(self, moments: Moments, number: int) -> InvariantFit:
        """Return the refit of a candidate."""
        support = self.tests.support[number]
        return self.fits.get(support.tobytes()) or invariance_test(moments, support)


@dataclass(frozen=True)
class _Choice:
    candidates: _Candidates
    chosen: int
    """The number of the chosen candidate."""
    fit: InvariantFit
    invariant: bool
    groups_differ: bool
    """Whether a candidate is rejected, at the level over the number of supports."""
    narrow: int | None
    """The number of the best candidate that fits clearly better and is rejected narrowly."""


def _flow_tests(moments: Moments, alpha: float) -> tuple[SubsetTests, dict[bytes, InvariantFit]]:
    """Return the tests of one support for every penalty and start of the flow; a repeated support is refitted once."""
    rho = np.concatenate([PENALTIES, PENALTIES])
    warm = np.arange(len(rho)) >= len(PENALTIES)
    supports = np.abs(heterogeneity_flow(moments, rho, warm, alpha=alpha)) > PRESENT
    tested: dict[bytes, InvariantFit] = {}
    for support in supports:
        if support.tobytes() not in tested:
            tested[support.tobytes()] = invariance_test(moments, support)
    fits = [tested[support.tobytes()] for support in supports]
    column = lambda name: np.array([getattr(fit, name) for fit in fits])
    return SubsetTests(supports, *map(column, ("statistic", "freedom", "p_value", "risk", "bic"))), tested


def _search(moments: Moments, alpha: float) -> _Candidates:
    """Return the supports of the flow, and all subsets of the screened columns."""
    flow, fits = _flow_tests(moments, alpha)
    subsets = subset_tests(moments, screened_columns(moments))
    return _Candidates(
        source=["flow, cold"] * len(PENALTIES) + ["flow, warm"] * len(PENALTIES) + ["subset"] * len(subsets.p_value),
        rho=np.concatenate([PENALTIES, PENALTIES, np.full(len(subsets.p_value), np.nan)]),
        tests=SubsetTests(*(np.concatenate([getattr(part, f.name) for part in (flow, subsets)]) for f in fields(flow))),
        fits=fits,
    )


def _choose(moments: Moments, alpha: float, level: float) -> _Choice:
    """Return the passing candidate of least information criterion; if none passes, that of the largest p-value."""
    candidates = _search(moments, alpha)
    tests = candidates.tests
    differ = bool(np.nanmin(tests.p_value) <= level / len(np.unique(tests.support, axis=0)))
    for number in _passing(tests, level):
        fit = candidates.fit(moments, number)
        # the tests of all subsets together are less accurate in groups with few rows
        if fit.p_value > level:
            better = tests.bic[number] - BETTER * np.log(moments.sizes.sum())
            return _Choice(candidates, number, fit, True, differ, _narrowly_rejected(tests, better, level))
    closest = _least_contradicted(tests)
    return _Choice(candidates, closest, candidates.fit(moments, closest), False, differ, None)


def _passing(tests: SubsetTests, level: float) -> list[int]:
    """Return the numbers of the candidates above the level, in the order of their information criterion."""
    order = np.argsort(tests.bic, kind="stable")
    return order[tests.p_value[order] > level].tolist()


def _least_contradicted(tests: SubsetTests) -> int:
    """Return the candidate with the largest p-value; p-values that underflow are ordered by statistic per freedom."""
    excess = tests.statistic / np.maximum(tests.freedom, 1)
    return int(np.lexsort((-excess, np.nan_to_num(tests.p_value, nan=-1.0)))[-1])


def _narrowly_rejected(tests: SubsetTests, better: float, level: float) -> int | None:
    """Return the best candidate with a criterion below `better` and a p-value in (NARROW level, level]."""
    narrow = (tests.p_value > NARROW * level) & (tests.p_value <= level) & (tests.bic < better)
    return int(np.where(narrow, tests.bic, np.inf).argmin()) if narrow.any() else None


def _verdict(choice: _Choice, level: float, names: list[str]) -> tuple[str, bool]:
    """Return the result in words, and whether it calls for a warning."""
    tests, p_value = choice.candidates.tests, choice.fit.p_value
    columns = _columns(tests.support[choice.chosen], names)
    if not choice.invariant:
        return (
            f"All {len(tests.p_value)} candidates are rejected as different between groups, at level {level:g}. "
            f"The largest p-value is {p_value:.2g}, of the {columns}. The coefficients are those of this model, which "
            f"is not established as invariant, and not those of pooled least squares (`pooled_coef_`). If a true model "
            f"is among the candidates, p-values as small as these have a probability of at most {p_value:.2g}.",
            True,
        )
    passed = f"The {columns} passes the test of invariance (p = {p_value:.2g}, level {level:g})."
    if choice.narrow is not None:
        return (
            f"{passed} However, the {_columns(tests.support[choice.narrow], names)} fits better and is rejected "
            f"narrowly (p = {tests.p_value[choice.narrow]:.2g}). The test rejects a true model with probability "
            f"{level:g}, so that model may be the true one.",
            True,
        )
    if not choice.groups_differ:
        return (
            f"{passed} However, the groups do not differ enough to reject any of the candidates. This is the one that "
            "fits best, and nothing in the data shows whether it holds in other groups: it may contain effects of y.",
            True,
        )
    if not tests.support[choice.chosen].any():
        others = bool(tests.support[tests.p_value > level].any())
        reason = "No column improves the fit" if others else "No model with a column passes"
        return f"{passed} {reason}, so predictions are constant.", True
    return passed, False


def _columns(support: Bool[np.ndarray, " d"], names: list[str]) -> str:
    inside = [names[j] for j in np.flatnonzero(support)]
    if not inside:
        return "model without columns"
    shown = ", ".join(inside[:8]) + (f" and {len(inside) - 8} more" if len(inside) > 8 else "")
    return f"model of {'column' if len(inside) == 1 else 'columns'} {shown}"


def _table(candidates: _Candidates) -> "pandas.DataFrame":
    import pandas

    tests = candidates.tests
    return pandas.DataFrame(
        {
            "source": candidates.source,
            "rho": candidates.rho,
            "size": tests.support.sum(1),
            "p_value": tests.p_value,
            "risk": tests.risk,
            "bic": tests.bic,
            "support": [tuple(np.flatnonzero(support).tolist()) for support in tests.support],
        }
    )
