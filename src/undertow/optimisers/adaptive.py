"""Optimisers that divide by the root of an average of squared gradients: RMSProp, Adam and AdamW.

    m+ = b1 m + (1 - b1) g,    v+ = b2 v + (1 - b2) g^2,    theta+ = (1 - eta lambda) theta - eta m+/(sqrt(v+) + eps)

With bias correction, m+ and v+ are divided by 1 - b1^t and 1 - b2^t in step t = 1, 2, ...
"""

import inspect
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from undertow import _trees as trees
from undertow._calls import checked_call
from undertow._validate import Number, flag
from undertow.optimisers.base import AbstractOptimiser, Rates, StepSizes, as_number
from undertow.regime import Regime, SmallParameter

__all__ = ["AbstractAdaptive", "Adam", "AdamW", "RMSProp"]

Self = TypeVar("Self", bound="AbstractAdaptive")


class AbstractAdaptive(AbstractOptimiser):
    """The common update. The state is a dict of `v` and, where b1 is given, `m`."""

    b1: float | Array | None
    b2: float | Array
    eps: float | Array
    weight_decay: float | Array
    bias_correction: bool = eqx.field(static=True)

    def init(self, params: PyTree) -> PyTree:
        names = ("v",) if self.b1 is None else ("m", "v")
        return {name: trees.zeros_like(params) for name in names}

    def rates(self, steps: Int[Array, "..."], step_sizes: StepSizes) -> Rates:
        """Return the step size over 1 - b1^t, the root of 1 - b2^t, and 1 - eta lambda."""
        kept = 1 - step_sizes * self.weight_decay
        if not self.bias_correction:
            return {"step": step_sizes, "root": jnp.ones_like(step_sizes), "kept": kept}
        count = (steps + 1).astype(step_sizes.dtype)
        first = 0.0 if self.b1 is None else self.b1**count
        return {"step": step_sizes / (1 - first), "root": jnp.sqrt(1 - self.b2**count), "kept": kept}

    def update(self, params: PyTree, state: PyTree, gradient: PyTree, rates: Rates) -> tuple[PyTree, PyTree]:
        b2 = jnp.asarray(self.b2)
        v = jax.tree.map(lambda v, g: _mixed(b2, v, g * g), state["v"], gradient)
        m, after = gradient, {"v": v}
        if self.b1 is not None:
            b1 = jnp.asarray(self.b1)
            m = jax.tree.map(lambda m, g: _mixed(b1, m, g), state["m"], gradient)
            after = {"m": m, "v": v}

        def moved(p: Array, m: Array, v: Array) -> Array:
            step, root, kept, eps = (x.astype(p.dtype) for x in (*_ordered(rates), jnp.asarray(self.eps)))
            return kept * p - step * m / (jnp.sqrt(v) / root + eps)

        return jax.tree.map(moved, params, m, v), after

    def metric(self, state: PyTree, params: PyTree) -> PyTree:
        """Return 1/(sqrt(v) + eps)."""
        return jax.tree.map(lambda v: 1 / (jnp.sqrt(v) + jnp.asarray(self.eps, v.dtype)), state["v"])

    def decay(self, metric: PyTree) -> PyTree:
        """Return lambda, the same for all parameters."""
        return jax.tree.map(lambda s: jnp.full_like(s, self.weight_decay), metric)

    def slow_state(self, state: PyTree, second_moment: PyTree, step_size: Number) -> PyTree:
        """Return d v/d slow_time = (1 - b2)/eta^2 (E g^2 - v), as the dict {"v": ...}."""
        kappa = (1 - jnp.asarray(self.b2)) / jnp.asarray(step_size) ** 2
        change = lambda v, target: jnp.asarray(kappa, v.dtype) * (target - v)
        return {"v": jax.tree.map(change, state["v"], second_moment)}

    def start_up(self, steps: Number | Array) -> Number | Array:
        """Return 1/(1 - b2^(steps + 1)): v with bias correction changes by this times (1 - b2)(g^2 - v) in a step."""
        if not self.bias_correction:
            return 1.0
        return -1 / jnp.expm1((jnp.asarray(steps) + 1) * jnp.log(jnp.asarray(self.b2)))

    def after_start_up(self: Self) -> Self:
        """Return the optimiser without bias correction."""
        if not self.bias_correction:
            return self
        numbers = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return type(self)(**{**numbers, "bias_correction": False})

    @property
    def memory(self) -> Number:
        """b1."""
        return 0.0 if self.b1 is None else self.b1

    def regime(self, step_size: Number, curvature: Number) -> Regime:
        ratio = (1 - float(self.b2)) / (float(step_size) * float(curvature))
        meaning = "relaxation time across the manifold over the memory of v"
        return Regime((SmallParameter("(1 - b2)/(eta lambda)", ratio, 1.0, meaning),))


class RMSProp(AbstractAdaptive):
    """RMSProp: v+ = b2 v + (1 - b2) g^2, theta+ = theta - eta g/(sqrt(v+) + eps). As in PyTorch, with v = 0 at first.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> noise = ut.Minibatch(ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0])), batch_size=1)
    >>> run = ut.descend(noise, jnp.array(0.0), optimiser=ut.RMSProp(), step_size=0.01, steps=1000, key=0, seeds=100)
    >>> print(abs(run.params.mean() - 2) < 0.1)
    True
    """

    @checked_call("RMSProp")
    def __init__(self, b2: Number = 0.99, eps: Number = 1e-8):
        self.b1 = None
        self.b2 = as_number("RMSProp", "b2", b2, below=1.0)
        self.eps = as_number("RMSProp", "eps", eps)
        self.weight_decay = 0.0
        self.bias_correction = False


class Adam(AbstractAdaptive):
    """Adam: theta+ = theta - eta m+/(sqrt(v+) + eps), as in PyTorch and optax.

    m+ = b1 m + (1 - b1) g is an average of past gradients, v+ = b2 v + (1 - b2) g^2 one of their squares. Both start at
    0, and in step t = 1, 2, ... they are divided by 1 - b1^t and 1 - b2^t, unless `bias_correction=False`. The metric
    is 1/(sqrt(v) + eps). L2 regularisation is part of the loss: add lambda/2 |theta|^2 there. Decoupled weight decay is
    `AdamW`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> noise = ut.Minibatch(ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0])), batch_size=1)
    >>> run = ut.descend(noise, jnp.array(0.0), optimiser=ut.Adam(), step_size=0.01, steps=1000, key=0, seeds=100)
    >>> print(abs(run.params.mean() - 2) < 0.1, sorted(run.optimiser_state))
    True ['m', 'v']
    """

    @checked_call("Adam")
    def __init__(self, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-8, bias_correction: bool = True):
        self.b1 = as_number("Adam", "b1", b1, below=1.0)
        self.b2 = as_number("Adam", "b2", b2, below=1.0)
        self.eps = as_number("Adam", "eps", eps)
        self.weight_decay = 0.0
        self.bias_correction = flag("Adam", "bias_correction", bias_correction)


class AdamW(AbstractAdaptive):
    """Adam with decoupled weight decay: theta+ = (1 - eta lambda) theta - eta m+/(sqrt(v+) + eps), as in PyTorch.

    lambda is `weight_decay`; m, v and the other arguments are those of `Adam`.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> noise = ut.Minibatch(ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0])), batch_size=1)
    >>> run = ut.descend(noise, jnp.array(0.0), optimiser=ut.AdamW(weight_decay=1.0), step_size=0.01, steps=1000,
    ...                  key=0, seeds=100)
    >>> print(run.params.mean() < 1.5)
    True
    """

    @checked_call("AdamW")
    def __init__(
        self,
        b1: Number = 0.9,
        b2: Number = 0.999,
        eps: Number = 1e-8,
        weight_decay: Number = 0.01,
        bias_correction: bool = True,
    ):
        self.b1 = as_number("AdamW", "b1", b1, below=1.0)
        self.b2 = as_number("AdamW", "b2", b2, below=1.0)
        self.eps = as_number("AdamW", "eps", eps)
        self.weight_decay = as_number("AdamW", "weight_decay", weight_decay)
        self.bias_correction = flag("AdamW", "bias_correction", bias_correction)


def _mixed(share: Array, old: Array, new: Array) -> Array:
    kept = share.astype(old.dtype)
    return kept * old + (1 - kept) * new


def _ordered(rates: Rates) -> tuple[Array, Array, Array]:
    return rates["step"], rates["root"], rates["kept"]
