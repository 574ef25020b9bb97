"""Pytrees of arrays as named arrays and a description in JSON, without pickle.

Dicts, lists, tuples and None are described. Other nodes (modules of equinox, named tuples) are stored as their leaves
and the name of their type; a pytree with the same structure must be given to read them.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import prng_key
from jaxtyping import PyTree

from undertow.execution.store import JSONObject, StoreError

__all__ = ["Packer", "unpack"]

KEYS = (str, int, float)
"""Types of the keys of dicts that JSON can hold, in a list of pairs."""


class Packer:
    """Arrays with the names of their dimensions, collected from pytrees. An array that occurs twice is kept once."""

    def __init__(self, reserved: set[str]) -> None:
        self.variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
        self._taken = set(reserved)
        self._leaves: dict[int, tuple[JSONObject, object]] = {}

    def pack(self, tree: PyTree, name: str, leading: tuple[str, ...] = ()) -> JSONObject | None:
        """Add the leaves of a pytree, under names that start with `name`, and return its description.

        `leading` names the first dimensions of every leaf.
        """
        if tree is None:
            return None
        if type(tree) is dict and all(type(key) in KEYS for key in tree):
            return {"dict": [[key, self.pack(part, f"{name}.{key}", leading)] for key, part in tree.items()]}
        if type(tree) in (list, tuple):
            return {type(tree).__name__: [self.pack(part, f"{name}.{k}", leading) for k, part in enumerate(tree)]}
        leaves = jax.tree.leaves(tree)
        if len(leaves) == 1 and leaves[0] is tree:
            return self._leaf(tree, name, leading)
        described = [self._leaf(leaf, f"{name}.{k}", leading) for k, leaf in enumerate(leaves)]
        return {"node": _kind(tree), "leaves": described}

    def _leaf(self, leaf: object, name: str, leading: tuple[str, ...]) -> JSONObject:
        if id(leaf) not in self._leaves:
            array, dtype = _encode(leaf)
            variable = self._free(name)
            self._taken.add(variable.lower())
            rest = tuple(f"{variable}[{axis}]" for axis in range(array.ndim - len(leading)))
            self.variables[variable] = ((*leading, *rest), array)
            described = {"array": variable, "dtype": dtype, "jax": isinstance(leaf, jax.Array)}
            self._leaves[id(leaf)] = described, leaf  # with the leaf: an id is unique only while its object exists
        return self._leaves[id(leaf)][0]

    def _free(self, name: str) -> str:
        """Return a name that is a file name on every system, and differs from all others in more than case."""
        safe = re.sub(r"^[^A-Za-z0-9]|[^\w.\- ]", "_", name)[:50] or "_"  # a file name has at most 255 bytes
        candidates = (safe if k == 0 else f"{safe}~{k}" for k in range(len(self._taken) + 1))
        return next(candidate for candidate in candidates if candidate.lower() not in self._taken)


def unpack(described: JSONObject | None, arrays: dict[str, np.ndarray], like: PyTree, where: str) -> PyTree:
    """Return the pytree of a description. `like` has the structure of its nodes, or is None where that is not known.

    `where` names the pytree in the error for a node without `like`.
    """
    if described is None:
        return None
    for kind, build in (("list", list), ("tuple", tuple)):
        if kind in described:
            parts = described[kind]
            known = like if isinstance(like, list | tuple) and len(like) == len(parts) else [None] * len(parts)
            return build(unpack(part, arrays, sub, where) for part, sub in zip(parts, known, strict=True))
    if "dict" in described:
        known = like if isinstance(like, dict) else {}
        return {key: unpack(part, arrays, known.get(key), where) for key, part in described["dict"]}
    if "node" in described:
        return _node(described, arrays, like, where)
    array = _decode(arrays[described["array"]], described["dtype"])
    exact = isinstance(array, jax.Array) or jnp.dtype(jax.dtypes.canonicalize_dtype(array.dtype)) == array.dtype
    return jnp.asarray(array) if described["jax"] and exact else array


def _node(described: JSONObject, arrays: dict[str, np.ndarray], like: PyTree, where: str) -> PyTree:
    leaves = [unpack(leaf, arrays, None, where) for leaf in described["leaves"]]
    if like is None:
        raise TypeError(f"`Trajectory.load`: {where} of the run are a {described['node']}; give {_advice(where)}.")
    structure = jax.tree.structure(like)
    if _kind(like) != described["node"] or structure.num_leaves != len(leaves):
        raise ValueError(
            f"`Trajectory.load`: {where} of the run are a {described['node']} of {len(leaves)} arrays, and the given "
            f"structure is a {_kind(like)} of {structure.num_leaves}; give {_advice(where)}."
        )
    return jax.tree.unflatten(structure, leaves)


def _kind(tree: PyTree) -> str:
    return f"{type(tree).__module__}.{type(tree).__qualname__}"


def _advice(where: str) -> str:
    like = "`like=params`, params of the same structure, such as the start of the run"
    return like if where == "params" else f"the functions of the run as `observe=` and `average=`, and {like}"


def _encode(leaf: object) -> tuple[np.ndarray, str]:
    """Return an array of a type that zarr supports, and the name of the type of the leaf."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, prng_key):
        return np.asarray(jax.random.key_data(leaf)), f"key:{jax.random.key_impl(leaf)}"
    array = np.asarray(leaf)
    if array.dtype.hasobject:
        raise StoreError(f"`run.save`: an observable holds a {type(leaf).__name__}, not numbers; store numbers.")
    if array.dtype.kind in "fiubc":
        return array, array.dtype.name
    return array.view(f"u{array.dtype.itemsize}"), array.dtype.name  # bfloat16 and other types of JAX


def _decode(array: np.ndarray, dtype: str) -> np.ndarray | jax.Array:
    if dtype.startswith("key:"):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=dtype.removeprefix("key:"))
    known = jnp.dtype(dtype)
    return array if array.dtype == known else array.view(known)
