"""Detection of kinks: operations in the jaxpr of a loss that are not twice differentiable."""

from collections.abc import Iterator

import jax
import jax.extend.core as jex
from jaxtyping import PyTree

from undertow import _trees as trees
from undertow.problem import AbstractProblem, AbstractSampled, Regression

__all__ = ["kinks"]

PRIMITIVES = {"max", "min", "abs", "sign", "clamp"}
FUNCTIONS = {"relu", "relu6", "leaky_relu", "hard_tanh", "hard_sigmoid", "elu", "selu", "celu", "clip"}


def kinks(problem: AbstractProblem, params: PyTree) -> list[str]:
    """Return the names of the operations in a problem's loss that are not twice differentiable everywhere.

    Functions that define their own derivative (`jax.custom_jvp`) count as smooth, except for the known ones with kinks.

    >>> import jax, jax.numpy as jnp
    >>> import undertow as ut
    >>> from undertow.manifold.smoothness import kinks
    >>> net = ut.Regression(lambda w, x: jnp.sum(jax.nn.relu(w * x)), jnp.ones((3, 2)), jnp.ones(3))
    >>> print(kinks(net, jnp.ones(2)))
    ['relu']
    """
    if not isinstance(problem, AbstractSampled):
        return []
    sample = trees.take(problem.data, 0)
    if isinstance(problem, Regression):
        program = jax.make_jaxpr(lambda p: problem.predict(p, sample[0]))(params)
    else:
        program = jax.make_jaxpr(lambda p: problem.sample_loss(p, sample))(params)
    return sorted(set(_kinks(program.jaxpr)))


def _kinks(jaxpr: jex.Jaxpr, trusted: bool = False) -> Iterator[str]:
    """Yield the kinks that affect the result; values that only pass through `stop_gradient` do not count."""
    alive = {id(v) for v in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.primitive.name == "stop_gradient" or not any(id(v) in alive for v in equation.outvars):
            continue
        alive |= {id(v) for v in equation.invars}
        name = equation.params.get("name")
        if name in FUNCTIONS:
            yield name
            continue
        types = (getattr(v.aval, "dtype", None) for v in equation.invars)
        floats = any(dtype is not None and dtype.kind == "f" for dtype in types)
        if equation.primitive.name in PRIMITIVES and floats and not trusted:
            yield equation.primitive.name
        inside = trusted or equation.primitive.name.startswith("custom_jvp")
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _kinks(inner, inside)
