"""The protocol of an optimiser: an update with a state, and the metric that the theory needs.

    theta+ = (1 - eta lambda) theta - eta S(state) m

with m an average of past gradients and S a diagonal metric, which depends on the state. SGD has S = 1.
"""

import math
from abc import abstractmethod
from typing import ClassVar, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._validate import Number
from undertow.noise.base import AbstractNoise
from undertow.regime import Regime

__all__ = ["AbstractOptimiser", "Rates", "StepSizes", "as_number", "first_squares", "squares_of"]

StepSizes = Float[Array, ""] | Float[Array, " block"]
"""The step size of every step of a block, or the one number that they share."""

Rates = PyTree[Float[Array, "..."]]
"""The numbers of an update that depend on the step alone, with the axis of `StepSizes` or without one."""

Self = TypeVar("Self", bound="AbstractOptimiser")


def as_number(optimiser: str, name: str, value: Number, below: float = math.inf) -> float | Array:
    """Return a setting of an optimiser as a float of at least 0 and less than `below`; a tracer stays what it is."""
    return value if isinstance(value, jax.core.Tracer) else validate.as_float(optimiser, name, value, below=below)


def squares_of(function: str, name: str, state: object, params: PyTree) -> PyTree:
    """Return v of a state {"v": ...} of an optimiser, which is like params."""
    if not (isinstance(state, dict) and "v" in state):
        what = trees.outline(state) if isinstance(state, dict) else validate.shown(state)
        raise TypeError(
            f'`{function}({name}={what})`: `{name}` is the dict {{"v": ...}} with the averages of the squared '
            "gradients; "
            "give `run.optimiser_state` of one seed, for instance."
        )
    v = trees.arrays(state["v"])
    wrong = trees.mismatch(v, params, f'{name}["v"]')
    if wrong:
        raise ValueError(f"`{function}({name}=...)`: {wrong}.")
    return v


class AbstractOptimiser(eqx.Module):
    """An optimiser: pure functions `init` and `update` for the simulation, `metric` and `slow_state` for the theory.

    A new optimiser defines these four, `decay` and `regime`. `descend` then runs it for many seeds, and `diffuse`,
    `Limit`, `average`, `noether_flow` and `equilibrium` predict where it goes. Its numbers are fields; `prepared` turns
    them into arrays, so that two optimisers that differ in numbers share one compiled program.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.noise.additive import noiseless
    >>> from undertow.regime import Regime
    >>> class Preconditioned(ut.AbstractOptimiser):  # theta+ = theta - eta S g, for params that are one vector
    ...     scale: jax.Array
    ...     def init(self, params): return None
    ...     def update(self, params, state, gradient, rates): return params - rates * self.scale * gradient, state
    ...     def metric(self, state, params): return self.scale
    ...     def decay(self, metric): return 0 * metric
    ...     def slow_state(self, state, second_moment, step_size): return None
    ...     def regime(self, step_size, curvature): return Regime()
    >>> bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    >>> optimiser = Preconditioned(jnp.array([1.0, 2.0]))
    >>> print(ut.descend(noiseless(bowl), jnp.ones(2), optimiser=optimiser, step_size=0.25, steps=1, key=0).params)
    [0.75 0.5 ]
    """

    decoupled: ClassVar[bool] = True
    """Whether weight decay shrinks params directly, and not as a part of the gradient, which momentum delays."""

    regime_of_largest: ClassVar[bool] = False
    """Whether `regime` takes the largest curvature of S^(1/2) H S^(1/2), and not the least that matters."""

    @abstractmethod
    def init(self, params: PyTree) -> PyTree:
        """Return the state before the first step: a pytree of arrays, or None without a state."""

    @abstractmethod
    def update(self, params: PyTree, state: PyTree, gradient: PyTree, rates: Rates) -> tuple[PyTree, PyTree]:
        """Return params and the state after one step. `rates` is one entry of what the method `rates` returns."""

    @abstractmethod
    def metric(self, state: PyTree, params: PyTree) -> PyTree:
        """Return the diagonal of S, shaped like params, for a state after many steps."""

    @abstractmethod
    def decay(self, metric: PyTree) -> PyTree:
        """Return the rate lambda at which weight decay shrinks each parameter: per step by eta times lambda."""

    @abstractmethod
    def slow_state(self, state: PyTree, second_moment: PyTree, step_size: Number) -> PyTree:
        """Return d state/d slow_time for gradients whose squares have the mean `second_moment`; None without one."""

    @abstractmethod
    def regime(self, step_size: Number, curvature: Number) -> Regime:
        """Return the small parameters of the theory, for the least curvature of S^(1/2) H S^(1/2) that matters."""

    @property
    def memory(self) -> Number:
        """The weight b1 of the past in the average m = b1 m + (1 - b1) g that multiplies S; 0 without momentum."""
        return 0.0

    def start_up(self, steps: Number | Array) -> Number | Array:
        """Return the factor that bias correction gives `slow_state` after a number of steps from `init`; 1 without."""
        return 1.0

    def after_start_up(self: Self) -> Self:
        """Return the optimiser for a state after many steps: the same without bias correction."""
        return self

    def rates(self, steps: Int[Array, "..."], step_sizes: StepSizes) -> Rates:
        """Return the numbers that depend on the step alone; `steps` counts from 0. Here: the step sizes."""
        return step_sizes

    def step(
        self, params: PyTree, state: PyTree, noise: AbstractNoise, slice: PyTree, rates: Rates
    ) -> tuple[PyTree, PyTree]:
        """Return params and the state after one step with the gradient of one slice of the noise's randomness."""
        return self.update(params, state, noise.gradient(params, slice), rates)

    def prepared(self: Self) -> Self:
        """Return the optimiser with arrays for its numbers."""
        array = lambda leaf: jnp.asarray(leaf, jnp.result_type(float)) if isinstance(leaf, float) else leaf
        return jax.tree.map(array, self)


def first_squares(optimiser: AbstractOptimiser, params: PyTree, second_moment: PyTree) -> PyTree:
    """Return v after the first step from `init`: E g^2 with bias correction, (1 - b2) E g^2 without.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.optimisers.base import first_squares
    >>> print(first_squares(ut.RMSProp(b2=0.75), jnp.zeros(2), jnp.array([4.0, 8.0])))
    [1. 2.]
    """
    before = optimiser.init(params)
    change = optimiser.slow_state(before, second_moment, 1.0)["v"]
    factor = jnp.asarray(optimiser.start_up(0.0))
    return jax.tree.map(lambda v, x: v + factor.astype(x.dtype) * x, before["v"], change)
