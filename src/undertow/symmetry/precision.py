"""The precision in which symmetries are computed: at least float32.

In half precision rounding is so coarse that most directions look like symmetries.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

__all__ = ["coarsest", "widened"]

Tree = TypeVar("Tree")


def widened(tree: Tree) -> Tree:
    """Return a pytree (params, a problem, a noise) with half-precision arrays converted to float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) and is_half(x.dtype) else x, tree)


def is_half(dtype: np.dtype) -> bool:
    """Return whether a type is a floating-point type of fewer than 32 bits."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def coarsest(loss: Callable[[PyTree, PyTree], Array], params: PyTree, sample: PyTree) -> np.dtype:
    """Return the coarsest type between params and loss: a type of params, or one that the loss casts to."""
    # the linearised loss contains only the operations that depend on params
    _, linear = jax.linearize(lambda p: loss(p, sample), params)
    types = [leaf.dtype for leaf in jax.tree.leaves(params)] + list(_types(jax.make_jaxpr(linear)(params).jaxpr))
    return max((t for t in types if jnp.issubdtype(t, jnp.floating)), key=lambda t: float(jnp.finfo(t).eps))


def _types(jaxpr: jex.Jaxpr) -> Iterator[np.dtype]:
    """Yield the types of all values that a jaxpr computes, inner ones included."""
    for equation in jaxpr.eqns:
        types = (getattr(v.aval, "dtype", None) for v in equation.outvars)
        yield from (dtype for dtype in types if dtype is not None)
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from _types(inner)
