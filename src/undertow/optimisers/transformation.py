"""The values that `optimiser=` accepts: an optimiser of undertow, or (only in `descend`) an optax transformation."""

import inspect
from typing import NoReturn

import jax
from jaxtyping import PyTree

from undertow import _validate as validate
from undertow._validate import Number
from undertow.optimisers.base import AbstractOptimiser, Rates
from undertow.optimisers.sgd import SGD

__all__ = ["Transformation", "as_optimiser", "theory_optimiser"]


class Transformation(AbstractOptimiser):
    """An optax `GradientTransformation`, which has its own step size: theta+ = theta + update(g).

    >>> import jax.numpy as jnp
    >>> import optax
    >>> import undertow as ut
    >>> noise = ut.Minibatch(ut.Problem(lambda w, x: (w - x) ** 2 / 2, jnp.array([1.0, 3.0])), batch_size=1)
    >>> run = ut.descend(noise, jnp.array(0.0), optimiser=optax.lion(0.01), steps=1000, key=0, seeds=100)
    >>> print(abs(run.params.mean() - 2) < 0.1)
    True
    """

    transformation: tuple
    """The two functions `init` and `update`."""

    def init(self, params: PyTree) -> PyTree:
        return self.transformation[0](params)

    def update(self, params: PyTree, state: PyTree, gradient: PyTree, rates: Rates) -> tuple[PyTree, PyTree]:
        updates, state = self.transformation[1](gradient, state, params)
        return jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates), state

    def metric(self, state: PyTree, params: PyTree) -> NoReturn:
        raise TypeError(UNKNOWN_METRIC.format(call="Transformation.metric"))

    def decay(self, metric: PyTree) -> NoReturn:
        raise TypeError(UNKNOWN_METRIC.format(call="Transformation.decay"))

    def slow_state(self, state: PyTree, second_moment: PyTree, step_size: Number) -> NoReturn:
        raise TypeError(UNKNOWN_METRIC.format(call="Transformation.slow_state"))

    def regime(self, step_size: Number, curvature: Number) -> NoReturn:
        raise TypeError(UNKNOWN_METRIC.format(call="Transformation.regime"))


UNKNOWN_METRIC = (
    "`{call}`: the metric of an optax transformation is not known, so only `descend` accepts it; give `SGD`, "
    "`RMSProp`, `Adam` or `AdamW` of undertow."
)


def as_optimiser(
    function: str, optimiser: object, momentum: Number = 0.0, weight_decay: Number = 0.0
) -> AbstractOptimiser:
    """Return the optimiser that a user gave; SGD with `momentum` and `weight_decay` for None."""
    if optimiser is None:
        validate.finite_number(function, "momentum", momentum, below=1.0)
        validate.finite_number(function, "weight_decay", weight_decay)
        return SGD(momentum=momentum, weight_decay=weight_decay)
    for name, value in (("momentum", momentum), ("weight_decay", weight_decay)):
        if not (isinstance(value, float | int) and value == 0):
            raise TypeError(
                f"`{function}({name}={validate.shown(value)}, optimiser=...)`: `{name}` is a setting of SGD; give "
                "it to the optimiser, if that has such a setting."
            )
    if isinstance(optimiser, AbstractOptimiser):
        return optimiser
    kind = optimiser if inspect.isclass(optimiser) else type(optimiser)
    if kind.__module__.partition(".")[0] == "torch":
        raise TypeError(
            f"`{function}(optimiser={kind.__name__}(...))`: this is an optimiser of PyTorch; give the one of undertow, "
            "such as `undertow.AdamW(weight_decay=0.1)`."
        )
    if inspect.isclass(optimiser):
        raise TypeError(
            f"`{function}(optimiser={kind.__name__})`: this is a class; give an instance, `{kind.__name__}()`."
        )
    if isinstance(optimiser, tuple) and getattr(optimiser, "_fields", ())[:2] == ("init", "update"):
        return Transformation(tuple(optimiser[:2]))
    raise TypeError(
        f"`{function}(optimiser={validate.shown(optimiser)})`: `optimiser` is {validate.kind_of(optimiser)}; give "
        "`SGD`, `RMSProp`, `Adam` or `AdamW` of undertow, or an optax "
        "transformation."
    )


def theory_optimiser(
    function: str, optimiser: object, momentum: Number = 0.0, weight_decay: Number = 0.0
) -> AbstractOptimiser:
    """Return the optimiser that a user gave to a function of the theory, which needs its metric."""
    given = as_optimiser(function, optimiser, momentum, weight_decay)
    if isinstance(given, Transformation):
        raise TypeError(UNKNOWN_METRIC.format(call=f"{function}(optimiser=...)"))
    return given
