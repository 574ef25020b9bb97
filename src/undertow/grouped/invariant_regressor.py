"""An estimator of a linear model that holds in every group, by the heterogeneity flow and a test of invariance."""

import math
import warnings
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

if TYPE_CHECKING:
    import pandas

__all__ = ["InvariantRegressor"]

PENALTIES = np.geomspace(1.0, 1000.0, 13)
"""The penalties rho on gradients that differ between groups."""


class InvariantRegressor(RegressorMixin, BaseEstimator):
    """Linear regression on rows in groups (hospitals, years) with the variables that act alike in all groups.

    The heterogeneity flow (`undertow.grouped.flow`) proposes supports: 13 penalties on coordinates whose gradient
    differs between groups, from two starts each. Every support is refitted with one noise level per group and tested
    for invariance (`undertow.grouped.invariance`). Of those that pass, the one with the least pooled risk is chosen. If
    none passes, the coefficients are those of pooled least squares, `invariant_` is False, and a warning is issued.

    The method works if children of y change between groups, best if their correlation changes sign. It fails if the
    groups differ by shifts of means, and then usually warns. A model that passes the test need not be causal. The test
    allows noise that depends on x; the flow's V_j does not, which can change the proposed supports.

    **Arguments:** `level` of the test; `alpha`, the size of the cold start.

    **After `fit(X, y, groups)`:** `coef_`, `intercept_`, `support_` (a mask), `invariant_`, `p_value_`, `rho_` (the
    penalty of the chosen model; NaN if none passes), `pooled_coef_` (least squares), `path_` (a table with one row per
    penalty and start), `groups_`, `n_features_in_`, and `feature_names_in_` if the columns have names.

    >>> import undertow as ut
    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("flip", seed=0)
    >>> model = ut.InvariantRegressor().fit(design.X, design.y, design.groups)
    >>> print(model.invariant_, (model.support_ & design.children).any(), design.error(model.coef_) < 0.05)
    True False True
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
        candidates = _search(moments, float(self.alpha))
        best = _best(candidates, float(self.level))
        self.pooled_coef_, pooled_intercept = moments.original(moments.least_squares())
        self.path_ = _table(candidates)
        self.invariant_ = best is not None
        if best is None:
            self.coef_, self.intercept_ = self.pooled_coef_.copy(), pooled_intercept
            self.support_ = np.ones(self.n_features_in_, bool)
            tested = [p for candidate in candidates if not math.isnan(p := candidate.fit.p_value)]
            self.p_value_ = max(tested, default=math.nan)
            self.rho_ = math.nan
            warnings.warn(
                f"`InvariantRegressor`: found no linear model that is the same in every group (the best has p = "
                f"{self.p_value_:.2g}, level {self.level:g}); the coefficients are those of pooled least squares.",
                stacklevel=2,
            )
            return self
        self.coef_, self.intercept_ = moments.original(best.fit.coef, best.fit.intercept)
        self.support_, self.p_value_, self.rho_ = best.support, best.fit.p_value, best.rho
        return self

    def predict(self, X: ArrayLike) -> Float[np.ndarray, " rows"]:
        """Return X.coef_ + intercept_."""
        check_is_fitted(self)
        names_at_fit = getattr(self, "feature_names_in_", None)
        return grouped.predict_linear("InvariantRegressor.predict", X, self.coef_, self.intercept_, names_at_fit)

    def bootstrap(
        self, X: ArrayLike, y: ArrayLike | None, groups: ArrayLike | None = None, *, repeats: int = 200, seed: int = 0
    ) -> Bootstrap:
        """Fit data sets of groups drawn with replacement, for intervals that include the choice of the support.

        A draw in which no model passes contributes its pooled coefficients, as in `fit`. With few groups the
        intervals are a rough guide: five groups have only 126 different draws.
        """
        self._check_settings()
        moments, _, _ = grouped.moments_of("InvariantRegressor.bootstrap", X, y, groups)

        def estimate(drawn: Moments, repeat: int) -> tuple[np.ndarray, float]:
            best = _best(_search(drawn, float(self.alpha)), float(self.level))
            if best is None:
                return drawn.original(drawn.least_squares())
            return drawn.original(best.fit.coef, best.fit.intercept)

        return grouped.bootstrap("InvariantRegressor.bootstrap", moments, estimate, repeats, seed)

    def _check_settings(self) -> None:
        tiny = float(np.finfo(float).tiny)
        validate.finite_number("InvariantRegressor", "alpha", self.alpha, least=tiny, below=1.0)
        validate.finite_number("InvariantRegressor", "level", self.level, least=tiny, below=1.0)


@dataclass(frozen=True)
class _Candidate:
    rho: float
    warm: bool
    support: Bool[np.ndarray, " d"]
    fit: InvariantFit


def _search(moments: Moments, alpha: float) -> list[_Candidate]:
    """Return one candidate for every penalty and start; a repeated support is refitted once."""
    rho = np.concatenate([PENALTIES, PENALTIES])
    warm = np.arange(len(rho)) >= len(PENALTIES)
    supports = np.abs(heterogeneity_flow(moments, rho, warm, alpha=alpha)) > PRESENT
    tested: dict[bytes, InvariantFit] = {}
    for support in supports:
        if support.tobytes() not in tested:
            tested[support.tobytes()] = invariance_test(moments, support)
    return [
        _Candidate(float(r), bool(h), support, tested[support.tobytes()])
        for r, h, support in zip(rho, warm, supports, strict=True)
    ]


def _best(candidates: list[_Candidate], level: float) -> _Candidate | None:
    passing = [candidate for candidate in candidates if candidate.fit.p_value > level]
    return min(passing, key=lambda candidate: candidate.fit.risk, default=None)


def _table(candidates: list[_Candidate]) -> "pandas.DataFrame":
    import pandas

    return pandas.DataFrame(
        [
            {
                "start": "warm" if candidate.warm else "cold",
                "rho": candidate.rho,
                "size": int(candidate.support.sum()),
                "p_value": candidate.fit.p_value,
                "risk": candidate.fit.risk,
                "support": tuple(np.flatnonzero(candidate.support).tolist()),
            }
            for candidate in candidates
        ]
    )
