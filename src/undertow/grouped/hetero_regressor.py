"""An estimator that trains with one environment per step on grouped data, and the same training on pooled data."""

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
from undertow._calls import checked_call
from undertow.grouped import data as grouped
from undertow.grouped.data import PRESENT, Bootstrap, Moments
from undertow.grouped.two_phase import Phases, growth_phases

if TYPE_CHECKING:
    import pandas

__all__ = ["HeteroRegressor"]

STABLE = 0.9
"""The default of 2 step_size max(|c_e|, curvature), for which growth and the final oscillations are stable."""
WEAKEST = 0.2
"""The standardised covariance with y of the weakest variable that arrives within the default number of steps."""
LOST = 1e6
"""The standardised coefficient above which a run has diverged."""
WORSE = 1.01
"""The pooled mean squared error above which a run has diverged, in units of the variance of y; 1 at the start."""
MOST_STEPS = 10**7
"""The largest default number of steps; a step size that needs more raises an error."""


class HeteroRegressor(RegressorMixin, BaseEstimator):
    """Linear regression trained with one group per step, to filter variables whose effect changes sign between groups.

    The coefficients are w = u^2 - v^2, and the steps are

        u <- u (1 - 2 eta g_e),   v <- v (1 + 2 eta g_e),   g_e = Sigma_e w - c_e

    with g_e the gradient of half the mean squared error in group e. At each step the group is drawn with a probability
    proportional to its number of rows. The start is u = v = alpha. Several seeds are run, and the coefficients are the
    medians over the seeds. A run has diverged if it ends with a coefficient that is not finite or above 1e6, or
    with a pooled mean squared error above 1.01 times the variance of y, its value at the start. Such runs are counted
    in `diverged_` and left out, with a warning. A second warning is issued if `step_size` is too large for runs to
    settle.

    The estimator demonstrates the mechanism. It is better than pooled training only if the effect of a child of y
    changes sign strongly, and part of the gain is due to early stopping: `pooled_coef_` has the same model, step size
    and number of steps with all groups in every step. `diagnosis_` gives the reason why each variable is present or
    absent. For applications use `InvariantRegressor`.

    **Arguments:** `step_size` (None: 0.9/(2 max(|c_ej|, curvature)), the largest safe value), `steps` (None: enough
    for a variable whose standardised covariance with y is 0.2), `alpha` (the size of the start), `seeds` (the number of
    runs), `random_state` (the seed of their draws of groups). x and y are standardised by their pooled means and
    standard deviations first, so all these are in standardised units.

    **After `fit(X, y, groups)`:** `coef_`, `intercept_`, `pooled_coef_`, `pooled_intercept_`, `coef_runs_` (one row per
    seed, NaN if it diverged), `diverged_`, `largest_step_size_` (above it, steps on all rows do not settle at the
    least-squares fit of the present columns, or u and v grow together), `step_size_`, `steps_`, `diagnosis_` (a table),
    `groups_`, `n_features_in_`, and `feature_names_in_` if the columns have names.

    >>> import undertow as ut
    >>> from undertow.grouped.designs import grouped_design
    >>> design = grouped_design("flip", seed=0)
    >>> model = ut.HeteroRegressor().fit(design.X, design.y, design.groups)
    >>> print(design.error(model.coef_) < 0.1, design.error(model.pooled_coef_) > 0.1, model.diverged_)
    True True 0
    """

    @checked_call("HeteroRegressor")
    def __init__(
        self,
        *,
        step_size: float | None = None,
        steps: int | None = None,
        alpha: float = 1e-3,
        seeds: int = 16,
        random_state: int = 0,
    ):
        self.step_size = step_size
        self.steps = steps
        self.alpha = alpha
        self.seeds = seeds
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None, groups: ArrayLike | None = None) -> "HeteroRegressor":
        """Fit rows X of shape (rows, columns) to y; `groups` has a label (number or text) for every row."""
        self._check_settings()
        moments, self.groups_, names = grouped.moments_of("HeteroRegressor.fit", X, y, groups)
        self.n_features_in_ = moments.cross.shape[1]
        grouped.remember_names(self, names)
        runs = self._run(moments, self.random_state)
        self.step_size_, self.steps_, self.diverged_ = runs.step_size, runs.steps, int(runs.diverged.sum())
        if runs.diverged.all():
            raise ValueError(
                f"`HeteroRegressor(step_size={runs.step_size:.3g})`: every run diverged; use a smaller `step_size`, "
                f"such as {_safe_step_size(moments):.2g}."
            )
        w = runs.median()
        self.coef_, self.intercept_ = moments.original(w)
        self.largest_step_size_ = _largest_step_size(moments, w)
        pooled = _pooled(moments, runs.step_size, runs.steps, float(self.alpha))
        self._warn(moments, bool(np.isnan(pooled).any()))
        self.pooled_coef_, self.pooled_intercept_ = moments.original(pooled)
        self.coef_runs_ = np.stack([moments.original(each)[0] for each in runs.coef])
        labels = [str(j) for j in range(self.n_features_in_)] if names is None else list(names)
        lasting = np.where(np.abs(w) > PRESENT, w, 0.0)
        phases = growth_phases(
            moments, lasting, step_size=runs.step_size, steps=runs.steps, alpha=float(self.alpha)
        )  # fmt: skip
        self.diagnosis_ = _diagnose(moments, w, pooled, runs, phases, labels)
        return self

    def predict(self, X: ArrayLike) -> Float[np.ndarray, " rows"]:
        """Return X.coef_ + intercept_."""
        check_is_fitted(self)
        names_at_fit = getattr(self, "feature_names_in_", None)
        return grouped.predict_linear("HeteroRegressor.predict", X, self.coef_, self.intercept_, names_at_fit)

    def report(self) -> str:
        """Return a summary of the runs, and for each variable the reason why it is present or absent."""
        check_is_fitted(self)
        head = (
            f"{len(self.coef_runs_)} runs of {self.steps_} steps of size {self.step_size_:.3g} on {len(self.groups_)} "
            f"groups, {self.diverged_} diverged. A present variable need not be causal: a child of y whose effect "
            "has one sign in all groups is present too."
        )
        table = self.diagnosis_
        width = max(len(str(name)) for name in table["variable"])
        lines = [f"  {name:<{width}}  {why}" for name, why in zip(table["variable"], table["why"], strict=True)]
        return "\n".join([head, *lines])

    def bootstrap(
        self, X: ArrayLike, y: ArrayLike | None, groups: ArrayLike | None = None, *, repeats: int = 200, seed: int = 0
    ) -> Bootstrap:
        """Fit `repeats` data sets of groups drawn with replacement, for intervals of the coefficients.

        The rules for step size and steps are applied to each draw anew; draws in which every run diverges are counted
        as failed. With few groups the intervals are a rough guide: five groups have only 126 different draws.
        """
        self._check_settings()
        moments, _, _ = grouped.moments_of("HeteroRegressor.bootstrap", X, y, groups)

        def estimate(drawn: Moments, repeat: int) -> tuple[np.ndarray, float]:
            runs = self._run(drawn, [self.random_state, 1 + repeat])
            return drawn.original(np.full(drawn.cross.shape[1], np.nan) if runs.diverged.all() else runs.median())

        return grouped.bootstrap("HeteroRegressor.bootstrap", moments, estimate, repeats, seed)

    def _run(self, moments: Moments, seed: int | list[int]) -> "_Runs":
        step_size = _safe_step_size(moments) if self.step_size is None else float(self.step_size)
        alpha = float(self.alpha)
        needed = math.log(1 / alpha) / (2 * step_size * WEAKEST)
        if self.steps is None and needed > MOST_STEPS:
            raise ValueError(
                f"`HeteroRegressor(step_size={step_size:g})`: the default number of steps would be {needed:.3g}; use a "
                f"larger `step_size`, such as {_safe_step_size(moments):.2g}, or give `steps`."
            )
        steps = math.ceil(needed) if self.steps is None else self.steps
        return _descend(moments, step_size, steps, alpha, self.seeds, np.random.default_rng(seed))

    def _warn(self, moments: Moments, pooled_diverged: bool) -> None:
        call = f"`HeteroRegressor(step_size={self.step_size_:.3g})`"
        advice = f"use a smaller `step_size`, such as {_safe_step_size(moments):.2g}"
        lost = [f"{self.diverged_} of {self.seeds} runs diverged and are left out"] if self.diverged_ else []
        lost += ["the pooled run diverged and `pooled_coef_` is NaN"] if pooled_diverged else []
        if lost:
            warnings.warn(f"{call}: {'; '.join(lost)}; {advice}.", stacklevel=3)
        if self.step_size_ > self.largest_step_size_:
            warnings.warn(
                f"{call}: above {self.largest_step_size_:.3g} runs do not settle, so the coefficients are not those of "
                f"a fit; {advice}.",
                stacklevel=3,
            )

    def _check_settings(self) -> None:
        validate.finite_number("HeteroRegressor", "alpha", self.alpha, below=1.0, positive=True)
        if self.step_size is not None:
            validate.finite_number("HeteroRegressor", "step_size", self.step_size, positive=True)
        if self.steps is not None:
            validate.positive_integer("HeteroRegressor", "steps", self.steps)
        validate.positive_integer("HeteroRegressor", "seeds", self.seeds)
        if self.random_state is not None:
            validate.seed_number("HeteroRegressor", "random_state", self.random_state)


@dataclass(frozen=True)
class _Runs:
    """The ends of runs in standardised units; NaN for runs that diverged."""

    step_size: float
    steps: int
    coef: Float[np.ndarray, "seeds d"]
    log_u: Float[np.ndarray, "seeds d"]
    log_v: Float[np.ndarray, "seeds d"]
    diverged: Bool[np.ndarray, " seeds"]

    def median(self) -> Float[np.ndarray, " d"]:
        return np.median(self.coef[~self.diverged], axis=0)


def _safe_step_size(moments: Moments) -> float:
    half = np.sqrt(np.abs(moments.least_squares()))
    curvature = np.linalg.eigvalsh(half[:, None] * moments.second * half[None]).max()
    return STABLE / (2 * max(np.abs(moments.cross).max(), curvature))


def _largest_step_size(moments: Moments, w: Float[np.ndarray, " d"]) -> float:
    """Return the step size above which gradient descent on all rows does not settle.

    At the least-squares fit of the columns present in w the Hessian in sqrt|w| is 4 D Sigma D, D = diag sqrt|w|, and
    its largest eigenvalue times the step size must be below 2. At the start, where one of u_j and v_j grows, the other
    must shrink: |c_j| times the step size below 1.
    """
    present = np.abs(w) > PRESENT
    second = moments.pooled_second[np.ix_(present, present)]
    half = np.sqrt(np.abs(np.linalg.lstsq(second, moments.pooled_cross[present], rcond=None)[0]))
    curvature = np.linalg.eigvalsh(half[:, None] * second * half[None]).max(initial=0.0)
    return float(1 / max(2 * curvature, np.abs(moments.pooled_cross).max()))


def _diverged(moments: Moments, w: Float[np.ndarray, "runs d"]) -> Bool[np.ndarray, " runs"]:
    """Return whether w is not finite, above `LOST`, or has a pooled mean squared error above `WORSE`."""
    bounded = np.all(np.abs(w) < LOST, axis=1)
    w = np.where(bounded[:, None], w, 0.0)
    risk = 1 - 2 * w @ moments.pooled_cross + np.einsum("ri,ij,rj->r", w, moments.pooled_second, w)
    return ~bounded | (risk > WORSE)


def _descend(
    moments: Moments, step_size: float, steps: int, alpha: float, seeds: int, rng: np.random.Generator
) -> _Runs:
    """Run SGD on log|u| and log|v|: w depends on |u| and |v| only, and they may become very small.

    A NumPy loop over a few hundred steps takes milliseconds, less than the compilation of a JAX loop.
    """
    which = rng.choice(len(moments.sizes), (steps, seeds), p=moments.shares)
    every = np.arange(seeds)
    log_u = np.full((seeds, moments.cross.shape[1]), math.log(alpha))
    log_v = log_u.copy()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for groups in which:
            w = np.exp(2 * log_u) - np.exp(2 * log_v)
            move = 2 * step_size * moments.gradients(w)[every, groups]
            log_u += np.log(np.abs(1 - move))
            log_v += np.log(np.abs(1 + move))
        w = np.exp(2 * log_u) - np.exp(2 * log_v)
    diverged = _diverged(moments, w)
    w[diverged] = np.nan
    return _Runs(step_size, steps, w, log_u, log_v, diverged)


def _pooled(moments: Moments, step_size: float, steps: int, alpha: float) -> Float[np.ndarray, " d"]:
    """Return the end of the same descent with the gradient of all rows; NaN if it diverges."""
    second, cross = moments.pooled_second, moments.pooled_cross
    u = np.full(len(cross), alpha)
    v = u.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            move = 2 * step_size * (second @ (u**2 - v**2) - cross)
            u, v = u * (1 - move), v * (1 + move)
        w = u**2 - v**2
    return np.full(len(w), np.nan) if _diverged(moments, w[None])[0] else w


def _diagnose(
    moments: Moments, w: np.ndarray, pooled: np.ndarray, runs: _Runs, phases: Phases, names: list[str]
) -> "pandas.DataFrame":
    """Return a table with one row per variable, for the larger (or predicted larger) one of u and v."""
    import pandas

    present = np.abs(w) > PRESENT
    columns = np.arange(len(w))
    side = np.where(present, (w < 0).astype(int), phases.end.argmax(0))
    medians = np.stack([np.median(logs[~runs.diverged], axis=0) for logs in (runs.log_u, runs.log_v)])
    first, last, end, simulated = (x[side, columns] for x in (phases.first, phases.last, phases.end, medians))
    covariances = -moments.gradients(np.where(present, w, 0.0))
    one_sign = (covariances.min(0) > 0) | (covariances.max(0) < 0)
    return pandas.DataFrame(
        {
            "variable": names,
            "coef": w,
            "pooled": pooled,
            "present": present,
            "lam0": first,
            "lam_star": last,
            "t1": np.where(present, phases.arrival, phases.t1),
            "predicted_log": end,
            "simulated_log": simulated,
            "why": [
                _why(bool(present[j]), float(first[j]), float(last[j]), float(phases.arrival[j]), phases.t1,
                     bool(one_sign[j]), runs.steps, float(end[j]))
                for j in columns
            ],
        }
    )  # fmt: skip


def _why(
    present: bool, first: float, last: float, arrival: float, t1: float, one_sign: bool, steps: int, end: float
) -> str:  # fmt: skip
    """Return the reason why a variable is present or absent."""
    if present:
        when = f"arrives at step {arrival:.0f} of {steps}" if arrival <= steps else "arrives later than predicted"
        return f"present: grows by {first:+.3f} per step at first, {when}."
    after = f"after step {t1:.0f}" if t1 <= steps else "later"
    later = (math.log(math.sqrt(PRESENT)) - end) / last if last > 0 else math.inf
    if later < steps:
        outlook = "no step size filters it" if one_sign else "only early stopping excludes it"
        return f"late: {last:+.3f} per step {after}, arrives at about step {steps + later:.0f}; {outlook}."
    rates = f"{first:+.3f} per step at first, {last:+.3f} {after}"
    if first <= 0 or last * steps < -1:
        return f"filtered: its gradient has different signs in the groups; {rates}."
    return f"starved: no residual is left for it once the others are fitted; {rates}."
