"""Means over the runs of a trajectory: scalar observables at each time."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow._table import number
from undertow.estimate import standard_error, t_quantile

__all__ = ["Series", "named_leaves", "series_of", "table_row"]


@dataclass(frozen=True, eq=False)
class Series:
    """The mean over runs of one scalar observable at each time."""

    mean: np.ndarray
    standard_error: np.ndarray
    """The standard error of the mean; NaN for fewer than two runs."""
    runs: np.ndarray
    """The number of runs in the mean: those that had not diverged."""

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the confidence interval of the mean, by Student's t; NaN for fewer than two runs.

        >>> import numpy as np
        >>> from undertow.series import Series
        >>> low, high = Series(np.array([2.5]), np.array([0.645]), np.array([4])).interval()
        >>> print(low.round(2), high.round(2))
        [0.45] [4.55]
        """
        t = np.array([t_quantile((1 + level) / 2, int(count)) if count > 1 else np.nan for count in self.runs])
        return self.mean - t * self.standard_error, self.mean + t * self.standard_error


def named_leaves(observed: dict[str, PyTree]) -> dict[str, np.ndarray]:
    """Return every leaf of the observables by its name: `name` for an array, `name.path` for a leaf of a pytree."""
    return {name: np.asarray(leaf) for name, leaf in zip(trees.names(observed), jax.tree.leaves(observed), strict=True)}


def series_of(observed: dict[str, PyTree], alive: np.ndarray) -> dict[str, Series]:
    """Return the means of all real scalars where `alive`, which has the axes (seeds, times), or (times,)."""
    leaves = named_leaves(observed)
    real = {name: x for name, x in leaves.items() if x.ndim == alive.ndim and not np.iscomplexobj(x)}
    return {name: _series(values, alive) for name, values in real.items()}


def _series(values: np.ndarray, alive: np.ndarray) -> Series:
    if values.ndim == 1:
        return Series(np.where(alive, values, np.nan), np.full(len(values), np.nan), alive.astype(int))
    runs = alive.sum(axis=0)
    mean, error = np.full((2, len(runs)), np.nan)
    for count in np.unique(runs[runs > 0]):  # times with the same number of runs, which diverged runs reduce
        times = np.flatnonzero(runs == count)
        kept = values[:, times].T[alive[:, times].T].reshape(len(times), count).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # a run may be about to diverge
            mean[times] = kept.mean(axis=1)
            if count > 1:
                error[times] = standard_error(kept, axis=1)
    return Series(mean, error, runs)


def table_row(name: str, values: np.ndarray, series: Series | None, columns: int) -> tuple[str, ...]:
    """Return a row of the table of a run: first and last mean of a scalar observable, the shape of another."""
    if series is None or columns < 4:
        return (name, *[""] * (columns - 2), f"shape {values.shape}")
    error = series.standard_error[-1]
    return name, number(series.mean[0]), number(series.mean[-1]), "" if np.isnan(error) else number(error)
