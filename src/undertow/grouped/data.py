"""Validation, standardisation and moments of grouped data, and a bootstrap over groups.

Gradients, flows and refits are functions of the second moments of (1, x, y) in each group, so their cost does not
depend on the number of rows. The test of invariance needs fourth moments and makes one pass over the rows per model.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from undertow import _validate as validate
from undertow._arrays import real_array
from undertow._progress import Progress
from undertow._table import ResultTable, number

__all__ = [
    "PRESENT",
    "Bootstrap",
    "Moments",
    "bootstrap",
    "check_rows",
    "moments_of",
    "predict_linear",
    "remember_names",
]

PRESENT = 0.03
"""A standardised coefficient above this counts as not zero."""
FARTHEST = 1e280
"""The largest ratio of the standard deviations of y and of a column, so that coefficients do not overflow."""
FEW_GROUPS = 10
"""Below this number of groups, a bootstrap over groups warns that its intervals are rough."""


@dataclass(frozen=True)
class Moments:
    """Second moments of z = (1, x, y) in each group, x and y standardised by pooled mean and standard deviation.

    With shares p_e = n_e/n the pooled moments are sum_e p_e joint_e, in which every x and y has mean 0 and variance 1.
    """

    joint: Float[np.ndarray, "e d_plus_2 d_plus_2"]
    """E_e[z z'] for every group."""
    sizes: Int[np.ndarray, " e"]
    """n_e, the number of rows in each group."""
    mean: Float[np.ndarray, " d_plus_1"]
    """Pooled means of (x, y), in the units of the data."""
    scale: Float[np.ndarray, " d_plus_1"]
    """Pooled standard deviations of (x, y)."""
    rows: tuple[Float[np.ndarray, "_ d_plus_2"], ...]
    """z of every row, one array per group."""

    @property
    def shares(self) -> Float[np.ndarray, " e"]:
        """n_e/n."""
        return self.sizes / self.sizes.sum()

    @property
    def second(self) -> Float[np.ndarray, "e d d"]:
        """Sigma_e = E_e[x x'], about the pooled mean."""
        return self.joint[:, 1:-1, 1:-1]

    @property
    def cross(self) -> Float[np.ndarray, "e d"]:
        """c_e = E_e[x y]."""
        return self.joint[:, 1:-1, -1]

    @property
    def power(self) -> Float[np.ndarray, " e"]:
        """E_e[y^2]."""
        return self.joint[:, -1, -1]

    @property
    def pooled_second(self) -> Float[np.ndarray, "d d"]:
        """Sigma, over all rows."""
        return np.tensordot(self.shares, self.second, 1)

    @property
    def pooled_cross(self) -> Float[np.ndarray, " d"]:
        """c, over all rows."""
        return self.shares @ self.cross

    def ridge(self, strength: float) -> Float[np.ndarray, " d"]:
        """Return (Sigma + strength I)^-1 c."""
        second = self.pooled_second
        return np.linalg.solve(second + strength * np.eye(len(second)), self.pooled_cross)

    def least_squares(self) -> Float[np.ndarray, " d"]:
        """Return the pooled least-squares coefficients, of least norm if they are not unique."""
        return np.linalg.lstsq(self.pooled_second, self.pooled_cross, rcond=None)[0]

    def gradients(self, w: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch e d"]:
        """Return g_e = Sigma_e w - c_e, the gradient of half the mean squared error in each group."""
        e, d = self.cross.shape
        moved = np.asarray(w) @ self.second.transpose(1, 0, 2).reshape(d, e * d)
        return moved.reshape(*np.shape(w)[:-1], e, d) - self.cross

    def original(self, w: Float[np.ndarray, " d"], intercept: float = 0.0) -> tuple[np.ndarray, float]:
        """Return coefficients and intercept in the units of the data."""
        coef = w * self.scale[-1] / self.scale[:-1]
        return coef, float(self.mean[-1] + intercept * self.scale[-1] - coef @ self.mean[:-1])

    def take(self, groups: Int[np.ndarray, " k"]) -> "Moments | None":
        """Return the data set of these groups, where a group listed twice counts as two; None if a column is constant.

        Means and standard deviations are pooled anew from the moments.
        """
        joint, sizes = self.joint[groups], self.sizes[groups]
        pooled = np.tensordot(sizes / sizes.sum(), joint, 1)
        mean = pooled[0, 1:]
        variance = np.diag(pooled)[1:] - mean**2
        if (variance < 1e-12).any():
            return None
        scale = np.sqrt(variance)
        change = np.diag(np.concatenate([[1.0], 1 / scale]))
        change[1:, 0] = -mean / scale
        moved = {e: self.rows[e] @ change.T for e in set(groups.tolist())}
        return Moments(
            joint=change @ joint @ change.T,
            sizes=sizes,
            mean=self.mean + mean * self.scale,
            scale=self.scale * scale,
            rows=tuple(moved[e] for e in groups.tolist()),
        )


def _column(names: np.ndarray | None, index: int) -> str:
    return f"column {index}" if names is None else f"column {str(names[index])!r}"


def _names(X: ArrayLike) -> np.ndarray | None:
    """Return the names of the columns, if all are strings."""
    columns = getattr(X, "columns", None)
    if columns is None or not all(isinstance(name, str) for name in columns):
        return None
    return np.asarray(columns, object)


def check_rows(function: str, X: ArrayLike) -> tuple[Float[np.ndarray, "rows d"], np.ndarray | None]:
    """Return X as finite numbers of shape (rows, columns), and the names of its columns."""
    names = _names(X)
    if scipy.sparse.issparse(X):
        raise TypeError(f"`{function}`: `X` is sparse, which is not supported; convert it with `.toarray()`.")
    values = real_array(function, "X", X)
    if values.ndim != 2:
        raise ValueError(
            f"`{function}`: `X` has shape {values.shape}; give (rows, columns). Reshape your data: "
            "`X.reshape(1, -1)` is one row, `X.reshape(-1, 1)` is one column."
        )
    if 0 in values.shape:
        raise ValueError(
            f"`{function}`: `X` is empty: {values.shape[0]} sample(s) and {values.shape[1]} feature(s) "
            f"(shape={values.shape}) while a minimum of 1 is required; give at least one row and one column."
        )
    bad = ~np.isfinite(values).all(0)
    if bad.any():
        where = _column(names, int(np.flatnonzero(bad)[0]))
        raise ValueError(f"`{function}`: {where} of `X` has missing or infinite values; drop those rows or fill them.")
    return values, names


def _read_groups(function: str, groups: ArrayLike | None, rows: int) -> tuple[np.ndarray, Int[np.ndarray, " rows"]]:
    """Return the names of the groups, and the number of each row's group."""
    if groups is None:
        raise ValueError(f"`{function}`: `groups` is not given; give the environment of each row, such as its site.")
    if np.ma.is_masked(groups):
        raise ValueError(f"`{function}`: `groups` has masked labels; drop those rows or give them a group.")
    try:
        labels = np.asarray(groups)
    except ValueError:  # rows of several lengths
        labels = np.asarray(None)
    if labels.shape != (rows,):
        call = validate.quote(function, groups=validate.shown(groups))
        raise ValueError(f"{call}: `groups` has shape {labels.shape} and `X` {rows} rows; give one label per row.")
    if any(label is None or label != label for label in labels.tolist()):
        raise ValueError(
            f"`{function}`: `groups` has missing labels; drop those rows or give them a group of their own."
        )
    try:
        names, numbers = np.unique(labels, return_inverse=True)
    except TypeError:
        raise TypeError(f"`{function}`: `groups` mixes labels of several types; convert them all to text.") from None
    if len(names) < 2:
        raise ValueError(
            f"`{function}`: `groups` has one group only, {names[0]!s}; give at least two, so that they can be compared."
        )
    counts = np.bincount(numbers)
    if counts.min() < 2:
        raise ValueError(
            f"`{function}`: group {names[counts.argmin()]!s} of `groups` has one row; every group needs two or "
            "more: merge "
            "it."
        )
    return names, numbers


def moments_of(
    function: str, X: ArrayLike, y: ArrayLike | None, groups: ArrayLike | None
) -> tuple[Moments, np.ndarray, np.ndarray | None]:
    """Return the moments of checked data, the names of its groups, and the names of its columns if they have names.

    >>> import numpy as np
    >>> from undertow.grouped.data import moments_of
    >>> X = np.array([[0.0], [2.0], [4.0], [6.0]])
    >>> moments, groups, _ = moments_of("fit", X, np.array([1.0, 1.0, 2.0, 4.0]), ["a", "a", "b", "b"])
    >>> print(groups, moments.sizes, moments.mean, moments.pooled_second)
    ['a' 'b'] [2 2] [3. 2.] [[1.]]
    """
    values, columns = check_rows(function, X)
    rows = len(values)
    if rows < 2:
        raise ValueError(f"`{function}`: `X` has one row (n_samples = 1); give at least two rows in each group.")
    if y is None:
        raise ValueError(
            f"`{function}`: the estimator requires y to be passed, but the target y is None; give one number per row."
        )
    target = real_array(function, "y", y)
    if target.shape == (rows, 1):
        from sklearn.utils.validation import column_or_1d

        target = column_or_1d(target, warn=True)
    if target.shape != (rows,):
        raise ValueError(f"`{function}`: `y` has shape {target.shape} and `X` {rows} rows; give one number per row.")
    if not np.isfinite(target).all():
        raise ValueError(f"`{function}`: `y` has missing or infinite values; drop those rows.")
    names, numbers = _read_groups(function, groups, rows)
    data = np.concatenate([values, target[:, None]], axis=1)
    # division by powers of two is exact; squares of the quotients neither overflow nor underflow
    exponent = np.frexp(np.abs(data).max(0))[1]
    data = np.ldexp(data, -exponent)
    mean, scale = data.mean(0), data.std(0)
    constant = np.flatnonzero(scale <= 1e-10 * np.abs(mean))
    if constant.size:
        where = "`y`" if constant[0] == values.shape[1] else f"{_column(columns, int(constant[0]))} of `X`"
        advice = "give a target that varies" if constant[0] == values.shape[1] else "leave it out"
        raise ValueError(f"`{function}`: {where} is constant; {advice}.")
    whole = np.concatenate([np.ones((rows, 1)), (data - mean) / scale], axis=1)
    mean, scale = np.ldexp(mean, exponent), np.ldexp(scale, exponent)
    apart = np.abs(np.log(scale[-1]) - np.log(scale[:-1]))
    if apart.max() > np.log(FARTHEST):
        raise ValueError(
            f"`{function}`: {_column(columns, int(apart.argmax()))} of `X` has standard deviation "
            f"{scale[apart.argmax()]:.3g} and `y` {scale[-1]:.3g}: coefficients would overflow; change the units."
        )
    sizes = np.bincount(numbers)
    parts = tuple(whole[numbers == e] for e in range(len(sizes)))
    joint = np.stack([part.T @ part / len(part) for part in parts])
    return Moments(joint, sizes, mean, scale, parts), names, columns


def remember_names(model: object, names: np.ndarray | None) -> None:
    """Set `feature_names_in_`, or delete that of an earlier fit, as scikit-learn does."""
    attributes = vars(model)
    if names is not None:
        attributes["feature_names_in_"] = names
    else:
        attributes.pop("feature_names_in_", None)


def predict_linear(
    function: str, X: ArrayLike, coef: Float[np.ndarray, " d"], intercept: float, names_at_fit: np.ndarray | None
) -> Float[np.ndarray, " rows"]:
    """Return X.coef + intercept, for rows with the columns of the fit; without names, `names_at_fit` is None."""
    values, names = check_rows(function, X)
    if values.shape[1] != len(coef):
        raise ValueError(
            f"`{function}`: X has {values.shape[1]} features, but {function.split('.')[0]} is expecting {len(coef)} "
            "features as input; give the columns of the fit."
        )
    if names is not None and names_at_fit is not None and list(names) != list(names_at_fit):
        first = next(j for j, (a, b) in enumerate(zip(names, names_at_fit, strict=True)) if a != b)
        raise ValueError(
            f"`{function}`: column {first} of `X` is {names[first]!r}, at fit it was {names_at_fit[first]!r}; "
            "give the same columns in the same order."
        )
    return values @ coef + intercept


@dataclass(frozen=True)
class Bootstrap:
    """Coefficients of an estimator on data sets of groups drawn with replacement, in the units of the data.

    >>> import numpy as np
    >>> import undertow as ut
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> drawn = ut.InvariantRegressor().bootstrap(X, X[:, 0], np.repeat(np.arange(12), 5), repeats=20)
    >>> print(drawn.coef.shape, drawn.groups, drawn.interval(0.9).round(2).tolist())
    (20, 2) 12 [[1.0, 0.0], [1.0, 0.0]]
    """

    coef: Float[np.ndarray, "repeats d"]
    intercept: Float[np.ndarray, " repeats"]
    groups: int
    """The number of groups in the data."""
    failed: int
    """The number of draws without a fit (a constant column, or no finite coefficients), which are left out above."""

    def interval(self, level: float = 0.95) -> Float[np.ndarray, "2 d"]:
        """Return the low and high end of a percentile interval for every coefficient."""
        validate.finite_number("interval", "level", level, below=1.0)
        return np.quantile(self.coef, [(1 - level) / 2, (1 + level) / 2], axis=0)

    def _table(self) -> ResultTable:
        ends = zip(*self.interval(), strict=True)
        rows = tuple((str(j), number(low), number(high)) for j, (low, high) in enumerate(ends))
        title = f"{len(self.coef)} draws of {self.groups} groups, {self.failed} failed; 95% intervals"
        return ResultTable(title, ("coefficient", "low", "high"), rows, "rrr")

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()


def bootstrap(
    function: str,
    moments: Moments,
    estimate: Callable[[Moments, int], tuple[np.ndarray, float]],
    repeats: int,
    seed: int,
) -> Bootstrap:
    """Return (coefficients, intercept) = `estimate(moments, repeat)` for `repeats` draws of groups with replacement.

    A group drawn twice counts as two equal groups, so draws are less heterogeneous than the data.
    """
    repeats = validate.positive_integer(function, "repeats", repeats)
    seed = validate.seed_number(function, "seed", seed)
    count = len(moments.sizes)
    if count < FEW_GROUPS:
        warnings.warn(
            f"`{function}`: {count} groups are few to draw from; take the intervals as a rough guide (they tend to be "
            f"too narrow below about {FEW_GROUPS} groups).",
            stacklevel=3,
        )
    rng = np.random.default_rng(seed)
    fits = []
    with Progress("bootstrap", repeats, None) as bar:
        for repeat in range(repeats):
            drawn = moments.take(rng.integers(0, count, count))
            if drawn is not None:
                coef, intercept = estimate(drawn, repeat)
                if np.isfinite(coef).all():
                    fits.append((coef, intercept))
            bar.update(repeat + 1)
    if not fits:
        raise ValueError(
            f"`{function}`: no draw of groups gave a fit; a column varies in one group only, or all fits diverge."
        )
    coefs, intercepts = zip(*fits, strict=True)
    return Bootstrap(np.stack(coefs), np.array(intercepts), count, repeats - len(fits))
