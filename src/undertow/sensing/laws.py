"""Laws of the size of a spurious signal over environments, with one number for each of its directions.

A law can be drawn from, and computes its mean, its covariance and the moments of the growth factor |1 + step_size s|.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from undertow import _arrays as arrays
from undertow import _validate as validate
from undertow._validate import KeyLike, Number, as_key
from undertow.sensing import factors

__all__ = ["AbstractLaw", "Gaussian", "Table", "Uniform", "two_point"]

Numbers = Number | Sequence
"""Types accepted for real numbers: one number, an array, or a sequence, nested for an array of several axes."""

RARE = 1e-4
"""Values with a smaller probability are unlikely to occur within a few thousand steps."""
NODES = 200
"""The number of points of the Gauss quadratures."""


class AbstractLaw(eqx.Module):
    """The law of s in R^k: independent over environments, with independent components except for a `Table`.

    >>> import jax.numpy as jnp, numpy as np
    >>> import undertow as ut
    >>> from undertow.sensing.laws import AbstractLaw
    >>> class Constant(AbstractLaw):  # the same number in every environment
    ...     value: float
    ...     size = 1
    ...     def draw(self, key, count): return jnp.full((count, 1), self.value)
    ...     def mean(self): return jnp.array([self.value])
    ...     def covariance(self): return jnp.zeros((1, 1))
    ...     def nodes(self): return jnp.array([[self.value]]), jnp.ones((1, 1))
    ...     def support(self): return np.array([self.value]), np.array([self.value])
    ...     def mean_log(self, step_size): return np.log(np.abs(1 + step_size * np.array([self.value])))
    ...     def log_moment(self, step_size, power): return power * self.mean_log(step_size)
    ...     def component(self, index): return self
    ...     def shifted(self, by): return Constant(self.value + by)
    >>> print(f"{ut.lyapunov(Constant(-2.0), step_size=0.25):.4f}")  # log(1/2)
    -0.6931
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """The number k of components."""

    @abstractmethod
    def draw(self, key: KeyLike, count: int) -> Float[Array, "count k"]:
        """Return `count` independent draws."""

    @abstractmethod
    def mean(self) -> Float[Array, " k"]:
        """Return E s."""

    @abstractmethod
    def covariance(self) -> Float[Array, "k k"]:
        """Return Cov s."""

    @abstractmethod
    def nodes(self) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        """Return values and weights for each component; for a density a Gauss rule, for smooth functions only."""

    @abstractmethod
    def support(self) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """Return the least and the greatest value of each component, infinite where it is unbounded."""

    @abstractmethod
    def mean_log(self, step_size: float) -> Float[np.ndarray, " k"]:
        """Return E log|1 + step_size s_j| for each component."""

    @abstractmethod
    def log_moment(self, step_size: float, power: float) -> Float[np.ndarray, " k"]:
        """Return log E|1 + step_size s_j|^power for each component, power > 0."""

    @abstractmethod
    def component(self, index: int) -> "AbstractLaw":
        """Return the law of s_index alone."""

    @abstractmethod
    def shifted(self, by: ArrayLike) -> "AbstractLaw":
        """Return the law of s + by."""

    def largest(self) -> float:
        """Return the greatest value that some |s_j| exceeds with a probability of 1e-4."""
        values, weights = (np.asarray(x, np.float64) for x in self.nodes())
        order = np.argsort(-np.abs(values), axis=0)
        reached = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0) > RARE
        first = np.take_along_axis(order, np.argmax(reached, axis=0)[None], axis=0)
        return float(np.abs(np.take_along_axis(values, first, axis=0)).max())


def _vectors(function: str, directions: int | None = None, **values: Numbers) -> list[Array]:
    """Return finite numbers as vectors of one length: one number for all directions, or one per direction."""
    checked = {name: arrays.finite_numbers(function, name, value) for name, value in values.items()}
    length = max(map(len, checked.values())) if directions is None else directions
    for name, vector in checked.items():
        if len(vector) not in (1, length):
            raise ValueError(
                f"{validate.quote(function, **{name: validate.shown(values[name])})}: `{name}` has {len(vector)} "
                "finite "
                f"numbers; give one, or one for each of {length} directions."
            )
    dtype = jnp.result_type(float)
    return [jnp.asarray(np.broadcast_to(vector, length), dtype) for vector in checked.values()]


class Table(AbstractLaw):
    """A law of finitely many environments: values (k,) or (environments, directions), with probabilities.

    The probabilities are equal if None.

    >>> import jax.numpy as jnp
    >>> from undertow.sensing.laws import Table
    >>> law = Table(jnp.array([[-4.0], [6.0]]))
    >>> print(law.mean(), law.covariance())
    [1.] [[25.]]
    """

    values: Float[Array, "e k"]
    probabilities: Float[Array, " e"]

    def __init__(self, values: Numbers, probabilities: Numbers | None = None):
        values = jnp.asarray(arrays.finite_numbers("Table", "values", values, most_axes=2), jnp.result_type(float))
        values = values[:, None] if values.ndim == 1 else values
        count = values.shape[0]
        weights = np.full(count, 1 / count) if probabilities is None else np.atleast_1d(probabilities)
        self.values = values
        self.probabilities = arrays.probabilities("Table", "probabilities", weights, count).astype(values.dtype)

    @property
    def size(self) -> int:
        return self.values.shape[1]

    def draw(self, key: KeyLike, count: int) -> Float[Array, "count k"]:
        return _draw_rows(as_key("draw", key), count, self.values, self.probabilities)

    def mean(self) -> Float[Array, " k"]:
        return self.probabilities @ self.values

    def component(self, index: int) -> "Table":
        return Table(self.values[:, index], self.probabilities)

    def shifted(self, by: ArrayLike) -> "Table":
        return Table(self.values + by, self.probabilities)

    def covariance(self) -> Float[Array, "k k"]:
        centred = self.values - self.mean()[None]
        return (centred * self.probabilities[:, None]).T @ centred

    def nodes(self) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        return self.values, jnp.broadcast_to(self.probabilities[:, None], self.values.shape)

    def support(self) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        values, _ = self._possible()
        return values.min(0), values.max(0)

    def mean_log(self, step_size: float) -> Float[np.ndarray, " k"]:
        values, weights = self._possible()
        return weights @ factors.log_factor(step_size * values)

    def log_moment(self, step_size: float, power: float) -> Float[np.ndarray, " k"]:
        values, weights = self._possible()
        logs = power * factors.log_factor(step_size * values)
        top = np.maximum(logs.max(0), np.finfo(float).min)  # finite even if every factor is 0
        return top + np.log1p(weights @ np.expm1(logs - top[None]))  # precise even if the moment is close to 1

    def _possible(self) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, " n"]]:
        """Return the values with positive probability, and the probabilities, in double precision."""
        weights = np.asarray(self.probabilities, np.float64)
        positive = weights > 0
        return np.asarray(self.values, np.float64)[positive], weights[positive] / weights[positive].sum()


@partial(jax.jit, static_argnums=1)
def _draw_rows(key: Key[Array, ""], count: int, values: Array, probabilities: Array) -> Array:
    return values[jax.random.choice(key, len(probabilities), (count,), p=probabilities)]


def two_point(mean: Numbers, spread: Numbers, directions: int = 1) -> Table:
    """Return the paper's law: mean - spread or mean + spread with equal probability. Directions vary together.

    >>> from undertow.sensing.laws import two_point
    >>> print(two_point(1.0, 5.0).values.ravel())
    [-4.  6.]
    """
    directions = validate.positive_integer("two_point", "directions", directions)
    centre, width = _vectors("two_point", directions, mean=mean, spread=spread)
    return Table(jnp.stack([centre - width, centre + width]))


class Uniform(AbstractLaw):
    """The uniform law on [low, high], with one interval for all directions or one per direction.

    >>> from undertow.sensing.laws import Uniform
    >>> print(Uniform(-2.0, 4.0).mean(), Uniform(-2.0, 4.0).covariance())
    [1.] [[3.]]
    """

    low: Float[Array, " k"]
    high: Float[Array, " k"]

    def __init__(self, low: Numbers, high: Numbers):
        given = {"low": validate.shown(low), "high": validate.shown(high)}
        low, high = _vectors("Uniform", low=low, high=high)
        if not (np.asarray(low) <= np.asarray(high)).all():
            raise ValueError(f"{validate.quote('Uniform', **given)}: `low` must not be above `high`.")
        self.low = low
        self.high = high

    @property
    def size(self) -> int:
        return self.low.shape[0]

    def draw(self, key: KeyLike, count: int) -> Float[Array, "count k"]:
        unit = jax.random.uniform(as_key("draw", key), (count, self.size), self.low.dtype)
        return self.low[None] + (self.high - self.low)[None] * unit

    def component(self, index: int) -> "Uniform":
        return Uniform(self.low[index], self.high[index])

    def shifted(self, by: ArrayLike) -> "Uniform":
        return Uniform(self.low + by, self.high + by)

    def mean(self) -> Float[Array, " k"]:
        return (self.low + self.high) / 2

    def covariance(self) -> Float[Array, "k k"]:
        return jnp.diag((self.high - self.low) ** 2 / 12)

    def nodes(self) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        points, weights = np.polynomial.legendre.leggauss(NODES)
        half = (self.high - self.low)[None] / 2
        values = self.mean()[None] + half * jnp.asarray(points, self.low.dtype)[:, None]
        return values, jnp.broadcast_to(jnp.asarray(weights / 2, self.low.dtype)[:, None], values.shape)

    def support(self) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        return np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)

    def mean_log(self, step_size: float) -> Float[np.ndarray, " k"]:
        intervals = step_size * np.stack(self.support(), axis=1)
        return np.array([factors.uniform_mean_log(*interval) for interval in intervals])

    def log_moment(self, step_size: float, power: float) -> Float[np.ndarray, " k"]:
        intervals = step_size * np.stack(self.support(), axis=1)
        return np.array([factors.uniform_log_moment(*interval, power) for interval in intervals])


class Gaussian(AbstractLaw):
    """The law N(mean, deviation^2), with one pair of numbers for all directions or one per direction.

    >>> from undertow.sensing.laws import Gaussian
    >>> print(Gaussian(1.0, 2.0).covariance())
    [[4.]]
    """

    centre: Float[Array, " k"]
    deviation: Float[Array, " k"]

    def __init__(self, mean: Numbers, deviation: Numbers):
        call = validate.quote("Gaussian", deviation=validate.shown(deviation))
        centre, deviation = _vectors("Gaussian", mean=mean, deviation=deviation)
        if (np.asarray(deviation) < 0).any():
            raise ValueError(f"{call}: `deviation` must be at least 0.")
        self.centre = centre
        self.deviation = deviation

    @property
    def size(self) -> int:
        return self.centre.shape[0]

    def draw(self, key: KeyLike, count: int) -> Float[Array, "count k"]:
        normal = jax.random.normal(as_key("draw", key), (count, self.size), self.centre.dtype)
        return self.centre[None] + self.deviation[None] * normal

    def component(self, index: int) -> "Gaussian":
        return Gaussian(self.centre[index], self.deviation[index])

    def shifted(self, by: ArrayLike) -> "Gaussian":
        return Gaussian(self.centre + by, self.deviation)

    def mean(self) -> Float[Array, " k"]:
        return self.centre

    def covariance(self) -> Float[Array, "k k"]:
        return jnp.diag(self.deviation**2)

    def nodes(self) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        points, weights = np.polynomial.hermite_e.hermegauss(NODES)
        values = self.centre[None] + self.deviation[None] * jnp.asarray(points, self.centre.dtype)[:, None]
        share = jnp.asarray(weights / weights.sum(), self.centre.dtype)
        return values, jnp.broadcast_to(share[:, None], values.shape)

    def support(self) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        centre, deviation = (np.asarray(x, np.float64) for x in (self.centre, self.deviation))
        reach = np.where(deviation > 0, np.inf, 0.0)
        return centre - reach, centre + reach

    def mean_log(self, step_size: float) -> Float[np.ndarray, " k"]:
        return np.array([factors.gaussian_mean_log(*numbers) for numbers in self._scaled(step_size)])

    def log_moment(self, step_size: float, power: float) -> Float[np.ndarray, " k"]:
        return np.array([factors.gaussian_log_moment(*numbers, power) for numbers in self._scaled(step_size)])

    def _scaled(self, step_size: float) -> Float[np.ndarray, "k 2"]:
        """Return mean and deviation of step_size s_j, in double precision."""
        return step_size * np.stack([np.asarray(x, np.float64) for x in (self.centre, self.deviation)], axis=1)


LawLike = AbstractLaw | Numbers
"""Types accepted for a law: an object, or its finitely many values."""


def as_law(function: str, law: object) -> AbstractLaw:
    """Return a law, given as an object or as its finitely many values."""
    if isinstance(law, AbstractLaw):
        return law
    if isinstance(law, validate.Number | list | tuple):
        return Table(arrays.finite_numbers(function, "law", law, most_axes=2))
    kind = validate.kind_of(law)
    raise TypeError(
        f"{validate.quote(function, law=validate.shown(law))}: `law` is {kind}; give a law, such as `two_point(1.0, "
        "5.0)`, "
        "or its values."
    )
