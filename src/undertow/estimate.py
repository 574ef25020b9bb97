"""A number that was estimated, with its standard error and intervals."""

import math
from numbers import Real
from typing import TYPE_CHECKING, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from scipy import special

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._arrays import data_arrays, sample_axis
from undertow._table import ResultTable, indexed, number, shortened
from undertow.figures import results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Counts = np.ndarray | np.generic | int

__all__ = ["Estimate", "share_error", "share_interval", "standard_error", "t_quantile"]


class Estimate(eqx.Module):
    """A Monte Carlo estimate: `value`, its `standard_error` (a pytree of the same structure), and the number of
    `samples`.

    `interval` uses Student's t for means, which matters for few samples, and the exact binomial interval for shares.

    >>> import jax.numpy as jnp
    >>> from undertow import Estimate
    >>> estimate = Estimate.of(jnp.array([1.0, 2.0, 3.0, 4.0]))
    >>> print(f"{estimate.value:.2f} +- {estimate.standard_error:.2f}")
    2.50 +- 0.65
    >>> low, high = estimate.interval()
    >>> print(f"95% interval {low:.2f} to {high:.2f}")
    95% interval 0.45 to 4.55
    >>> none = Estimate.share(jnp.zeros(100, bool))
    >>> print(f"{none.value:.2f}, 95% interval {none.interval()[0]:.3f} to {none.interval()[1]:.3f}")
    0.00, 95% interval 0.000 to 0.036
    >>> print(estimate)
    mean of 4 samples
          value  standard error  95% interval
    mean    2.5          0.6455  0.4457 to 4.554
    """

    value: PyTree
    standard_error: PyTree
    samples: int = eqx.field(static=True)
    kind: Literal["mean", "share"] = eqx.field(static=True, default="mean")

    @staticmethod
    def of(values: PyTree) -> "Estimate":
        """Return the mean over the leading axis of every leaf; its standard error is sd/sqrt(n), NaN for one value."""
        values = _checked("Estimate.of", "values", values)
        samples = jax.tree.leaves(values)[0].shape[0]
        mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), values)
        spread = lambda x: jnp.std(x, axis=0, ddof=1) if samples > 1 else jnp.full(x.shape[1:], jnp.nan, x.dtype)
        error = jax.tree.map(lambda x: spread(x) / jnp.sqrt(samples).astype(x.dtype), values)
        return Estimate(mean, error, samples)

    @staticmethod
    def share(flags: PyTree) -> "Estimate":
        """Return the share of true flags over the leading axis of every leaf, with the error of `share_error`."""
        flags = _checked("Estimate.share", "flags", flags)
        samples = jax.tree.leaves(flags)[0].shape[0]
        count = jax.tree.map(lambda x: np.asarray(x, bool).sum(axis=0), flags)
        value = jax.tree.map(lambda k: k / samples, count)
        return Estimate(value, jax.tree.map(lambda k: share_error(k, samples), count), samples, "share")

    def _table(self) -> ResultTable:
        rows = []
        what = {"mean": "mean", "share": "share"}[self.kind]
        low, high = self.interval()
        names = [name.removeprefix("params") or what for name in trees.names(self.value)]
        leaves = [[np.asarray(x) for x in jax.tree.leaves(t)] for t in (self.value, self.standard_error, low, high)]
        for name, value, *rest in zip(names, *leaves, strict=True):
            for entry, index in indexed(name, value):
                error, left, right = (np.broadcast_to(x, value.shape)[index] for x in rest)
                rows.append((entry, number(value[index]), number(error), f"{number(left)} to {number(right)}"))
        shown, notes = shortened(rows, "entries")
        header = ("", "value", "standard error", "95% interval")
        return ResultTable(f"{what} of {self.samples} samples", header, shown, "lrrl", notes)

    def __str__(self) -> str:
        return self._table().text() if _known(self) else repr(self)

    def _repr_html_(self) -> str:
        return self._table().html()

    def plot(self, *, label: str = "", ax: "Axes | None" = None) -> "Axes":
        """Draw every entry with its 95% interval, against its number in the flattened pytree.

        >>> import jax.numpy as jnp
        >>> from undertow import Estimate
        >>> axes = Estimate.of(jnp.array([[1.0, 5.0], [2.0, 6.0], [4.0, 6.0]])).plot(label="weights")
        >>> print(axes.get_xlabel(), axes.get_ylabel())
        entry weights
        """
        flat = lambda tree: np.concatenate([np.ravel(np.asarray(x)) for x in jax.tree.leaves(tree)])
        value, (low, high) = flat(self.value), map(flat, self.interval())
        axes = results.new_axes(ax)
        results.draw_points(axes, np.arange(len(value)), value, [value - low, high - value], label or self.kind)
        results.label_axes(axes, "entry")
        return axes

    def interval(self, level: float = 0.95) -> tuple[PyTree, PyTree]:
        """Return the lower and upper ends of the confidence interval at `level`."""
        if isinstance(level, bool) or not isinstance(level, Real) or not 0 < level < 1:
            call = validate.quote("Estimate.interval", level=validate.shown(level))
            raise ValueError(f"{call}: give a `level` between 0 and 1, such as 0.95.")
        if self.kind == "share":
            ends = lambda p: share_interval(np.rint(np.asarray(p) * self.samples), self.samples, level)
            low, high = (jax.tree.map(lambda p, side=side: ends(p)[side], self.value) for side in (0, 1))
            return low, high
        wide = t_quantile((1 + level) / 2, self.samples)
        low, high = (
            jax.tree.map(lambda m, e, sign=sign: m + sign * wide * e, self.value, self.standard_error)
            for sign in (-1, 1)
        )
        return low, high


def _checked(function: str, name: str, values: PyTree) -> PyTree:
    """Return values as arrays with a common leading axis; raise for others. Tracers and shapes pass."""
    values = data_arrays(function, name, values)
    sample_axis(function, **{name: values})
    return values


def _known(estimate: Estimate) -> bool:
    """Return whether the numbers are known: not while JAX traces."""
    return all(validate.concrete(leaf) for leaf in jax.tree.leaves((estimate.value, estimate.standard_error)))


def standard_error(
    values: np.ndarray | jax.Array | list[float], axis: int = 0, *, ddof: int = 1
) -> np.ndarray | np.floating:
    """Return the standard error of the mean over `axis`: the standard deviation over the root of the number of values.

    `ddof=1` divides the sum of squares by n - 1, `ddof=0` by n.

    >>> from undertow.estimate import standard_error
    >>> print(round(float(standard_error([1.0, 2.0, 3.0, 4.0])), 4))
    0.6455
    """
    values = np.asarray(values)
    return values.std(axis=axis, ddof=ddof) / np.sqrt(values.shape[axis])


def t_quantile(probability: float, samples: int | float) -> float:
    """Return the quantile of Student's t for the mean of `samples` values: infinite for one, normal for very many.

    >>> from undertow.estimate import t_quantile
    >>> print(f"{t_quantile(0.975, 4):.2f} {t_quantile(0.975, float('inf')):.2f}")
    3.18 1.96
    """
    if samples < 2:
        return math.inf
    return float(special.ndtri(probability) if math.isinf(samples) else special.stdtrit(samples - 1, probability))


def share_interval(count: Counts, trials: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact (Clopper-Pearson) interval of a probability from `count` successes in `trials`."""
    tail = (1 - level) / 2
    k = np.asarray(count, float)
    low = np.where(k > 0, special.betaincinv(np.maximum(k, 1), trials - k + 1, tail), 0.0)
    high = np.where(k < trials, special.betaincinv(k + 1, np.maximum(trials - k, 1), 1 - tail), 1.0)
    return low, high


def share_error(count: Counts, trials: int) -> np.ndarray | np.floating:
    """Return the standard error of a share: a quarter of the distance to the far end of the exact four-sigma interval.

    For many trials this is the binomial sqrt(p (1 - p)/n). The standard error is never 0, not even when all or none of
    the trials succeed. Four standard errors cover the true share with the probability of four standard deviations of a
    Gaussian.

    >>> from undertow.estimate import share_error
    >>> print(f"{share_error(5000, 10000):.4f} {share_error(0, 100):.3f}")
    0.0050 0.025
    """
    low, high = share_interval(np.asarray(count), trials, 1 - 2 * float(special.ndtr(-4.0)))
    p = np.asarray(count, float) / trials
    return np.maximum(high - p, p - low) / 4
