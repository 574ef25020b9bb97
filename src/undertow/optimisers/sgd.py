"""SGD, with heavy-ball or Nesterov momentum and with L2 regularisation."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from undertow import _trees as trees
from undertow import _validate as validate
from undertow._calls import checked_call
from undertow._validate import Number
from undertow.optimisers.base import AbstractOptimiser, as_number
from undertow.regime import Regime, SmallParameter

__all__ = ["SGD"]


class SGD(AbstractOptimiser):
    """SGD, theta+ = theta - eta (g + lambda theta), or with momentum beta: v+ = beta v + g + lambda theta,
    theta+ = theta - eta v+ (`nesterov`: theta - eta (g + lambda theta + beta v+)). As in PyTorch and optax.

    The metric is S = 1/(1 - beta): over times longer than 1/(1 - beta) steps, momentum multiplies the step size.

    >>> import jax.numpy as jnp
    >>> import undertow as ut
    >>> noise = ut.Minibatch(ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0])), batch_size=1)
    >>> run = ut.descend(noise, jnp.array(0.0), optimiser=ut.SGD(momentum=0.9), step_size=0.01, steps=1000, key=0,
    ...                  seeds=100)
    >>> print(abs(run.params.mean() - 2) < 0.1)
    True
    """

    decoupled = False
    regime_of_largest = True
    momentum: float | Array | None
    nesterov: bool = eqx.field(static=True)
    weight_decay: float | Array

    @checked_call("SGD")
    def __init__(self, momentum: Number = 0.0, nesterov: bool = False, weight_decay: Number = 0.0):
        self.momentum = as_number("SGD", "momentum", momentum, below=1.0)
        self.nesterov = validate.flag("SGD", "nesterov", nesterov)
        self.weight_decay = as_number("SGD", "weight_decay", weight_decay)
        if nesterov and validate.concrete(self.momentum) and not self.momentum:
            raise ValueError("`SGD(nesterov=True)`: Nesterov's method needs momentum; give `momentum=0.9`, say.")

    def init(self, params: PyTree) -> PyTree:
        return None if self.momentum is None else trees.zeros_like(params)

    def update(self, params: PyTree, state: PyTree, gradient: PyTree, rates: Array) -> tuple[PyTree, PyTree]:
        eta, decay, beta = rates, jnp.asarray(self.weight_decay), self.momentum
        if beta is None:
            kept = 1 - eta * decay
            moved = jax.tree.map(lambda p, d: kept.astype(p.dtype) * p - eta.astype(p.dtype) * d, params, gradient)
            return moved, None
        beta = jnp.asarray(beta)
        velocity = jax.tree.map(
            lambda v, d, p: beta.astype(p.dtype) * v + d + decay.astype(p.dtype) * p, state, gradient, params
        )
        if not self.nesterov:
            return jax.tree.map(lambda p, v: p - eta.astype(p.dtype) * v, params, velocity), velocity

        def ahead(p: Array, v: Array, d: Array) -> Array:
            return p - eta.astype(p.dtype) * (d + decay.astype(p.dtype) * p + beta.astype(p.dtype) * v)

        return jax.tree.map(ahead, params, velocity, gradient), velocity

    def metric(self, state: PyTree, params: PyTree) -> PyTree:
        beta = 0.0 if self.momentum is None else self.momentum
        return jax.tree.map(lambda p: jnp.full_like(p, 1 / (1 - jnp.asarray(beta, p.dtype))), params)

    def decay(self, metric: PyTree) -> PyTree:
        """Return lambda S: the decay is part of the gradient."""
        return trees.scale(self.weight_decay, metric)

    def slow_state(self, state: PyTree, second_moment: PyTree, step_size: Number) -> PyTree:
        return None

    @property
    def memory(self) -> Number:
        """The momentum beta: (1 - beta) v is an average of past gradients."""
        return 0.0 if self.momentum is None else self.momentum

    def regime(self, step_size: Number, curvature: Number) -> Regime:
        beta = 0.0 if self.momentum is None else float(self.momentum)
        if beta == 0.0:
            return Regime()
        ratio = float(step_size) * float(curvature) / (1 - beta)  # the curvature in the metric has the other 1 - beta
        return Regime((SmallParameter("eta lambda/(1 - beta)^2", ratio, 1.0, "memory of the momentum"),))

    def prepared(self) -> "SGD":
        """Return the optimiser with arrays for its numbers; momentum 0 becomes None, which has no velocity."""
        without = validate.concrete(self.momentum) and not self.momentum
        plain = eqx.tree_at(lambda o: o.momentum, self, None, is_leaf=lambda x: x is None) if without else self
        return super(SGD, plain).prepared()
