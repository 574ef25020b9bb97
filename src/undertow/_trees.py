"""Linear algebra on pytrees: params, gradients and other vectors of the same space.

A *vector* is any pytree of float arrays; a *factor* is a vector whose leaves have one extra trailing axis (for flat
params, a D x k matrix).
"""

import math
from collections.abc import Callable

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree, Shaped

from undertow._validate import Number, shown

__all__ = [
    "add",
    "arrays",
    "centre",
    "check_alike",
    "columns",
    "count",
    "dot",
    "elements",
    "floats_bytes",
    "in_default_precision",
    "machine_epsilon",
    "mismatch",
    "names",
    "one_of",
    "outline",
    "ravel",
    "scale",
    "standard_normal",
    "subtract",
    "take",
    "weigh",
    "zeros_like",
]

Vector = PyTree[Float[Array, "..."]]


def add(a: PyTree, b: PyTree) -> PyTree:
    """Return a + b, leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: PyTree, b: PyTree) -> PyTree:
    """Return a - b, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(amount: Number, vector: PyTree) -> PyTree:
    """Return amount * vector, in the dtype of each leaf."""
    return jax.tree.map(lambda leaf: jnp.asarray(amount, leaf.dtype) * leaf, vector)


def zeros_like(vector: PyTree) -> PyTree:
    """Return the zero vector of the same shape."""
    return jax.tree.map(jnp.zeros_like, vector)


def dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    """Return the inner product <a, b>."""
    parts = [jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return sum(parts[1:], parts[0])


def take(stacked: PyTree, index: int | np.integer | np.ndarray | Array) -> PyTree:
    """Return entry `index` (or entries, for an array of them) along the leading axis of every leaf, in range."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf).at[index].get(mode="promise_in_bounds"), stacked)


def one_of(stacked: PyTree) -> PyTree:
    """Return the shapes and types of one entry along the leading axis, as `jax.ShapeDtypeStruct`s."""
    one = lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype, weak_type=jax.typeof(x).weak_type)
    return jax.tree.map(one, stacked)


def weigh(weights: Float[Array, " n"], stacked: PyTree) -> PyTree:
    """Return sum_i weights_i stacked_i over the leading axis."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), stacked)


def columns(factor: PyTree, coefficients: Float[Array, " k"]) -> PyTree:
    """Return B c: the columns of a factor (trailing axis) combined with coefficients."""
    return jax.tree.map(lambda leaf: jnp.tensordot(leaf, coefficients.astype(leaf.dtype), axes=1), factor)


def centre(stacked: PyTree, weights: Float[Array, " n"]) -> PyTree:
    """Return stacked_i - sum_j weights_j stacked_j, along the leading axis."""
    mean = weigh(weights, stacked)
    return jax.tree.map(lambda leaf, m: leaf - m[None], stacked, mean)


def ravel(vector: PyTree) -> Shaped[Array, " D"]:
    """Return all leaves in one flat array, in the order of `jax.tree.leaves`."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(vector)])


@jax.jit
def unravel(vector: Shaped[Array, " D"], like: PyTree) -> PyTree:
    """Return a flat array as a tree with the shapes and types of `like`: the inverse of `ravel`."""
    return jax.flatten_util.ravel_pytree(like)[1](vector)


def count(vector: PyTree) -> int:
    """Return D, the number of scalars in a vector."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(vector))


def names(tree: PyTree) -> list[str]:
    """Return the name of each leaf: its path, such as `layers.0.weight`; a lone array is `params`."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [jax.tree_util.keystr(path, simple=True, separator=".") or "params" for path in paths]


def floats_bytes(tree: PyTree) -> int:
    """Return the memory of a tree of arrays (or of their shapes) in bytes. A random key counts as its two words."""

    def size(leaf: Array | np.ndarray | np.generic | jax.ShapeDtypeStruct) -> int:
        itemsize = 8 if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.dtype(leaf.dtype).itemsize
        return math.prod(leaf.shape) * itemsize

    return sum(size(leaf) for leaf in jax.tree.leaves(tree))


def elements(vector: PyTree) -> Callable[[int | Array], PyTree]:
    """Return the standard basis: `elements(v)(i)` is the i-th unit vector shaped like v."""
    flat, unravel = jax.flatten_util.ravel_pytree(vector)
    return lambda index: unravel(jnp.zeros_like(flat).at[index].set(1))


def standard_normal(key: Key[Array, ""], like: PyTree) -> PyTree:
    """Return independent N(0, 1) in the shape of `like` (arrays or `jax.ShapeDtypeStruct`s)."""
    leaves, structure = jax.tree.flatten(like)
    keys = [key] if len(leaves) == 1 else list(jax.random.split(key, len(leaves)))
    drawn = [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def machine_epsilon(tree: PyTree) -> float:
    """Return the largest machine epsilon of the types of the leaves."""
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(tree))


def in_default_precision(params: PyTree) -> PyTree:
    """Return params in JAX's default precision or a higher one: theory is computed in double precision if it is on."""
    raised = lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.result_type(float)))
    return jax.tree.map(lambda leaf: raised(jnp.asarray(leaf)), params)


def arrays(tree: PyTree) -> PyTree:
    """Return the tree with numbers and NumPy arrays as JAX arrays; other leaves are unchanged."""
    numeric = lambda leaf: (
        isinstance(leaf, float | int) or getattr(getattr(leaf, "dtype", None), "kind", "O") in "biufc"
    )
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if numeric(leaf) else leaf, tree)


def mismatch(tree: PyTree, params: PyTree, call: str) -> str:
    """Return how a pytree differs from params in structure, shapes or types, as a sentence; empty if it does not."""
    if jax.tree.structure(tree) != jax.tree.structure(params):
        return f"`{call}` is {outline(tree)} and params are {outline(params)}; make them match"
    for name, leaf, like in zip(names(params), jax.tree.leaves(tree), jax.tree.leaves(params), strict=True):
        if not hasattr(leaf, "shape"):
            return f"`{call}` has {shown(leaf)} for `{name}`, which has shape {like.shape}; make them match"
        if leaf.shape != like.shape:
            return f"`{call}` has shape {leaf.shape} for `{name}`, which has shape {like.shape}; make them equal"
        if leaf.dtype != like.dtype:
            return f"`{call}` has dtype {leaf.dtype} for `{name}`, which has {like.dtype}; convert it with `.astype`"
    return ""


def check_alike(tree: PyTree, params: PyTree, call: str) -> None:
    """Raise where a pytree is not like params."""
    wrong = mismatch(tree, params, call)
    if wrong:
        raise ValueError(f"{wrong}.")


def outline(tree: PyTree) -> str:
    """Return the structure of a pytree, with `*` for its leaves."""
    return str(jax.tree.structure(tree)).removeprefix("PyTreeDef(").removesuffix(")")
