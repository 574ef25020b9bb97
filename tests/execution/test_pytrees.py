"""Pytrees as named arrays: structures, types, names."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from undertow.execution import store
from undertow.execution.pytrees import Packer, unpack
from undertow.execution.store import StoreError


class Node(eqx.Module):
    a: jax.Array
    b: tuple[jax.Array, ...]


def through_zarr(tree, path, like=None):
    """Write a tree to a zarr folder and read it back."""
    packer = Packer({"seed"})
    described = json.loads(json.dumps(packer.pack(tree, "x")))
    data = xarray.Dataset(packer.variables)
    for variable in data.variables.values():
        variable.encoding["_FillValue"] = None
    back = store.load(store.save(path, data, {}))
    return unpack(described, {str(n): v.values for n, v in back.variables.items()}, like, "params")


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4)])
def test_arrays_keep_their_bits(kind, shape, tmp_path):
    """Random bytes: all values of integers, and floats with NaN and infinities."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    random = np.random.default_rng(0).integers(0, 2 if kind == "?" else 256, size, dtype=np.uint8)
    array = np.frombuffer(random.tobytes(), kind).reshape(shape)
    back = through_zarr(array, tmp_path / "a.zarr")
    assert back.dtype == array.dtype
    assert back.shape == shape
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float8_e4m3fn, jnp.float16, jnp.float32, jnp.int8, bool])
def test_arrays_of_jax_keep_their_types(kind, tmp_path):
    array = jnp.asarray([0.0, 1.0, -2.5, 3.0]).astype(kind)
    back = through_zarr(array, tmp_path / "a.zarr")
    assert isinstance(back, jax.Array)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_draw_the_same_numbers(impl, tmp_path):
    keys = jax.random.split(jax.random.key(3, impl=impl), 4)
    back = through_zarr(keys, tmp_path / "a.zarr")
    assert back.dtype == keys.dtype
    np.testing.assert_array_equal(jax.vmap(jax.random.normal)(back), jax.vmap(jax.random.normal)(keys))


TREES = [
    {},
    None,
    {"a": np.arange(2), "b": [np.zeros(1), (), None], "c": {"d": (np.ones(3),)}},
    {2: np.arange(2), 1.5: np.zeros(1)},
    [[], {}],
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_structures_are_kept(tree, tmp_path):
    back = through_zarr(tree, tmp_path / "a.zarr")
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, back, tree)


def test_nodes_need_a_tree_of_the_same_structure(tmp_path):
    tree = {"net": [Node(jnp.ones(2), (jnp.zeros(3), jnp.ones(1)))], "rest": jnp.zeros(1)}
    back = through_zarr(tree, tmp_path / "a.zarr", like=jax.tree.map(jnp.zeros_like, tree))
    assert eqx.tree_equal(back, tree)
    with pytest.raises(TypeError, match=r"params of the run are a .*Node; give `like=params`"):
        through_zarr(tree, tmp_path / "a.zarr")


def test_an_array_that_occurs_twice_is_kept_once():
    array = np.arange(5)
    packer = Packer(set())
    one, two = packer.pack({"a": array}, "x"), packer.pack([array], "y")
    assert list(packer.variables) == ["x.a"]
    assert one["dict"][0][1] == two["list"][0]


def test_names_are_file_names_that_differ_in_more_than_case():
    packer = Packer({"seed"})
    names = ["a", "A", "a/b", "a:b", ".hidden", "seed", "Seed", "", "..", "x" * 3]
    for name in names:
        packer.pack(np.zeros(1), name)
    variables = list(packer.variables)
    assert len({name.lower() for name in variables}) == len(names)
    assert not any(set(name) & set('/\\:*?"<>|') or name.startswith(".") for name in variables)
    assert "seed" not in variables


def test_objects_are_refused():
    with pytest.raises(StoreError, match="not numbers"):
        Packer(set()).pack(np.array([object()]), "x")
