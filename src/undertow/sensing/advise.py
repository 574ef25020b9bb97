"""Advice for runs with one environment per step: step sizes that learn the true signal first, and when to stop."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from undertow import _validate as validate
from undertow._calls import checked_call
from undertow._table import ResultTable
from undertow._validate import KeyLike
from undertow.figures import results
from undertow.grouped.data import moments_of
from undertow.sensing.bursts import burst_exponent
from undertow.sensing.growth import lyapunov, paper_window, scalar_map
from undertow.sensing.laws import LawLike, Table, as_law
from undertow.sensing.matrix_sensing import STABLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Advice", "advise"]

LEVEL = 0.1
"""A spurious signal below this counts as filtered."""


@dataclass(frozen=True)
class Advice:
    """A forecast of HeteroSGD on true signals of size 1 with spurious signals of a given law.

    >>> import undertow as ut
    >>> from undertow.sensing.laws import two_point
    >>> advice = ut.advise(two_point(1.0, 8.0), horizon=300, runs=10)
    >>> print(f"step size {advice.step_size:.1f}, stop between {advice.stop[0]} and {advice.stop[1]} steps")
    step size 0.1, stop between 84 and 300 steps
    """

    step_sizes: tuple[float, float] | None
    """The stable step sizes at which the true signal is learnt before the typical spurious one; None without any.

    The spurious signal decays where `exponent` is negative, and grows later than the true one elsewhere."""
    step_size: float | None
    """The step size with the highest probability of success."""
    stop: tuple[int, int] | None
    """The first and last step to stop at: the true signal is learnt, the spurious one is typically below 0.1."""
    probability: float
    """The probability, by the scalar map, that a run that stops inside the window has no spurious signal."""
    exponent: float
    """The Lyapunov exponent Lambda at that step size: the typical growth per step of the spurious signal."""
    tail: float
    """The exponent kappa of the tails q^-kappa of bursts re-seeded by measurement noise (`undertow.sensing.bursts`)."""
    paper_window: tuple[float, float]
    """The step sizes of the paper's theorem, for comparison; empty if the first is not below the second."""
    warnings: tuple[str, ...]

    def _table(self) -> ResultTable:
        if self.step_sizes is None or self.step_size is None or self.stop is None:
            return ResultTable(self.warnings[0], notes=self.warnings[1:])
        low, high = self.step_sizes
        rows = (
            ("step sizes", f"{low:.3g} to {high:.3g}", "the true signal is learnt before the spurious one"),
            ("best step size", f"{self.step_size:.3g}", "the highest probability of success"),
            ("stop at steps", f"{self.stop[0]} to {self.stop[1]}", "the true signal is learnt, the spurious one small"),
            ("probability", f"{self.probability:.0%}", "runs without a spurious signal"),
            ("growth per step", f"{self.exponent:.3g}", "of the typical spurious signal"),
            ("tail exponent", f"{self.tail:.3g}", "of bursts of the spurious signal"),
        )
        return ResultTable("advice for one environment per step", (), rows, notes=self.warnings)

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def plot(self, *, ax: "Axes | None" = None) -> "Axes":
        """Draw `step_sizes`, the best step size, and those of the paper's theorem, on a logarithmic axis.

        >>> import undertow as ut
        >>> from undertow.sensing.laws import two_point
        >>> axes = ut.advise(two_point(1.0, 8.0), runs=100).plot()
        >>> print(axes.get_xlabel(), axes.get_xscale())
        step size log
        """
        axes = results.new_axes(ax, height=2.2)
        paper = self.paper_window if self.paper_window[0] < self.paper_window[1] else None
        best = None if self.step_size is None else (self.step_size, f"best: {self.step_size:.3g}")
        results.draw_windows(
            axes, {"learn the true signal first": self.step_sizes, "theorem of the paper": paper}, best
        )
        axes.set_xlabel("step size")
        return axes


@checked_call("advise")
def advise(
    law: LawLike | tuple,
    horizon: int = 10_000,
    *,
    alpha: float = 1e-3,
    key: KeyLike = 0,
    runs: int = 1000,
) -> Advice:
    """Return the step-size window, the stopping window and the probability of success for a law, or for data.

    **Arguments:**

    - `law`: the law of a spurious signal's size in units of the true signal, or its sizes in the given environments (a
      table with equal weights); or data (X, y, groups) for `HeteroRegressor`, where the covariance of each variable
      with y sets its growth per step.
    - `horizon`: the largest number of steps of a run.
    - `alpha`: the size of the start.
    - `key`, `runs`: the key and the number of runs of the scalar map at each step size, which give the probability.

    With data, the strongest variable with one sign in all groups is taken as the true signal, and variables that change
    their sign as spurious signals. Step sizes are then those of `HeteroRegressor`.

    >>> import undertow as ut
    >>> from undertow.sensing.laws import two_point
    >>> print(ut.advise(two_point(1.0, 0.5)))
    The spurious signal has one sign in all environments: no step size filters it; use another method.
    """
    if isinstance(law, tuple) and len(law) == 3 and np.ndim(law[0]) == 2:
        return _advise_data(law, horizon, alpha=alpha, key=key, runs=runs)
    law = as_law("advise", law)
    horizon = validate.positive_integer("advise", "horizon", horizon)
    runs = validate.positive_integer("advise", "runs", runs)
    validate.finite_number("advise", "alpha", alpha, below=1.0, positive=True)
    key = validate.as_key("advise", key)
    window = paper_window(law)
    least, greatest = law.support()
    largest = law.largest()
    if not (least.any() or greatest.any()):
        return _no_window("There is no spurious signal: any method finds the true one.", window)
    if (least >= 0).all():
        return _no_window(
            "The spurious signal has one sign in all environments: no step size filters it; use another method.", window
        )
    most = STABLE / largest if largest else 1.0
    grid = np.geomspace(most / 300, most, 31)
    exponents = np.array([np.max(np.atleast_1d(lyapunov(law, float(eta)))) for eta in grid])
    # the true signal must reach 1 from alpha before the spurious one grows up
    arrive = np.log(1 / alpha) / np.log1p(grid)
    last = np.where(exponents > 0, np.log(math.sqrt(LEVEL) / alpha) / np.maximum(exponents, 1e-300), math.inf)
    good = (last > 1.15 * arrive) & (1.15 * arrive < horizon)
    if not good.any():
        return _no_window(
            f"No step size up to {most:.3g} (beyond it runs diverge) filters this signal before it is learnt: it "
            f"varies too little against its mean ({float(np.max(np.asarray(law.mean()))):.3g}); use another method.",
            window,
        )
    shares = np.zeros(len(grid))
    worst = law.component(int(np.argmax(np.atleast_1d(lyapunov(law, float(grid[good][-1]))))))
    for index in np.flatnonzero(good):
        steps = min(int(1.3 * arrive[index]) + 1, horizon)
        end, _ = scalar_map(worst, float(grid[index]), steps=steps, key=jax.random.fold_in(key, int(index)), runs=runs,
                            alpha=alpha)  # fmt: skip
        shares[index] = np.mean(end < LEVEL)
    best = int(np.lexsort((exponents, -shares.round(2)))[0])  # of equally good ones, the fastest to filter
    eta = float(grid[best])
    stop = (math.ceil(1.15 * arrive[best]), int(min(last[best], horizon)))
    tail = float(np.min(np.atleast_1d(burst_exponent(law, eta))))
    return Advice(
        step_sizes=(float(grid[good][0]), float(grid[good][-1])),
        step_size=eta,
        stop=stop,
        probability=float(shares[best]),
        exponent=float(exponents[best]),
        tail=tail,
        paper_window=window,
        warnings=_warnings(float(exponents[best]), tail, stop[1], window),
    )


def _no_window(reason: str, window: tuple[float, float]) -> Advice:
    """Return the advice where no step size filters, with the reason."""
    return Advice(None, None, None, 0.0, math.nan, math.nan, window, (reason,))


def _warnings(exponent: float, tail: float, last: int, window: tuple[float, float]) -> tuple[str, ...]:
    """Return the warnings for the chosen step size."""
    if exponent < 0:
        first = (
            f"Stop early: measurement noise regenerates the signal, which returns in bursts with tail exponent "
            f"{tail:.2g}."
        )
    else:
        first = f"The spurious signal still grows, only later than the true one: it is large after step {last}."
    if window[0] < window[1]:
        return (first,)
    return first, "The window of step sizes of the paper is empty for this law."


def _advise_data(data: tuple, horizon: int, *, alpha: float, key: KeyLike, runs: int) -> Advice:
    """Return advice in the units of one true signal, with step sizes converted to those of w = u^2 - v^2."""
    moments, _, names = moments_of("advise", *data)
    names = np.array([f"x{j}" for j in range(moments.cross.shape[1])]) if names is None else names
    cross = moments.cross * np.where(moments.pooled_cross < 0, -1.0, 1.0)[None]
    steady = (cross > 0).all(0)
    if not steady.any():
        reason = "No variable has the same sign in all groups: there is no signal that holds in all of them."
        return _no_window(reason, (math.nan, math.nan))
    unit = 2 * float(np.abs(moments.pooled_cross[steady]).max())  # u grows by the factor 1 + 2 eta c per step
    kept = f"No step size filters variables with one sign in all groups: {', '.join(names[steady][:5])}" + (
        f" and {steady.sum() - 5} more." if steady.sum() > 5 else "."
    )
    if steady.all():
        return _no_window(kept, (math.nan, math.nan))
    advice = advise(Table(2 * cross[:, ~steady] / unit, moments.shares), horizon, alpha=alpha, key=key, runs=runs)
    window = advice.step_sizes
    return replace(
        advice,
        step_sizes=None if window is None else (window[0] / unit, window[1] / unit),
        step_size=None if advice.step_size is None else advice.step_size / unit,
        paper_window=(advice.paper_window[0] / unit, advice.paper_window[1] / unit),
        warnings=(*advice.warnings, kept),
    )
