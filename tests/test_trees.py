"""Linear algebra on pytrees against NumPy on flat arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from undertow import _trees as trees

A = {"b": jnp.arange(6.0).reshape(2, 3), "a": jnp.array(-1.0)}
B = {"b": jnp.ones((2, 3)) / 2, "a": jnp.array(4.0)}
FLAT_A, FLAT_B = np.array([-1.0, 0, 1, 2, 3, 4, 5]), np.array([4.0] + [0.5] * 6)
STACKED = {"b": jnp.arange(12.0).reshape(2, 3, 2), "a": jnp.array([7.0, -2.0])}
WEIGHTS = jnp.array([0.25, 0.75])


def test_leaves_are_flattened_in_the_order_of_jax():
    np.testing.assert_array_equal(trees.ravel(A), FLAT_A)
    np.testing.assert_array_equal(trees.ravel(A), jax.flatten_util.ravel_pytree(A)[0])


def test_shapes_of_one_entry_are_those_of_an_entry():
    shapes, entry = trees.one_of(STACKED), trees.take(STACKED, 0)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == jax.tree.map(lambda x: (x.shape, x.dtype), entry)
    assert trees.one_of(jnp.full(3, 1.0)).weak_type == jnp.full(3, 1.0).weak_type


def test_sums_multiples_and_products():
    np.testing.assert_array_equal(trees.ravel(trees.add(A, B)), FLAT_A + FLAT_B)
    np.testing.assert_array_equal(trees.ravel(trees.subtract(A, B)), FLAT_A - FLAT_B)
    np.testing.assert_array_equal(trees.ravel(trees.scale(3, A)), 3 * FLAT_A)
    np.testing.assert_array_equal(trees.ravel(trees.zeros_like(A)), np.zeros(7))
    assert float(trees.dot(A, B)) == FLAT_A @ FLAT_B


def test_a_multiple_keeps_the_type_of_each_leaf():
    mixed = {"half": jnp.ones(2, jnp.bfloat16), "single": jnp.ones(2, jnp.float32)}
    scaled = trees.scale(np.float64(0.1), mixed)
    assert scaled["half"].dtype == jnp.bfloat16
    assert scaled["single"].dtype == jnp.float32


def test_entries_of_stacked_trees():
    np.testing.assert_array_equal(trees.take(STACKED, 1)["b"], STACKED["b"][1])
    rows = trees.take({"x": np.arange(10.0)}, jnp.array([7, 0, 7]))["x"]
    np.testing.assert_array_equal(rows, [7.0, 0.0, 7.0])


def test_weighted_sums_and_centred_trees():
    mean = trees.weigh(WEIGHTS, STACKED)
    np.testing.assert_array_equal(mean["b"], 0.25 * STACKED["b"][0] + 0.75 * STACKED["b"][1])
    assert float(mean["a"]) == 0.25 * 7 - 0.75 * 2
    centred = trees.centre(STACKED, WEIGHTS)
    np.testing.assert_array_equal(centred["a"], np.array([7.0, -2.0]) - 0.25)
    np.testing.assert_allclose(trees.ravel(trees.weigh(WEIGHTS, centred)), np.zeros(7), atol=1e-6)


def test_columns_of_a_factor_are_combined():
    factor = {"b": jnp.arange(24.0).reshape(2, 3, 4), "a": jnp.arange(4.0)}
    coefficients = np.array([1.0, -1.0, 2.0, 0.5], np.float32)
    combined = trees.columns(factor, jnp.asarray(coefficients))
    np.testing.assert_allclose(combined["b"], np.asarray(factor["b"]) @ coefficients)
    np.testing.assert_allclose(combined["a"], np.arange(4.0) @ coefficients)


def test_counts_and_bytes():
    tree = {"x": jnp.zeros((2, 3), jnp.float16), "y": jax.ShapeDtypeStruct((5,), jnp.float32)}
    assert trees.count(tree) == 11
    assert trees.count(A) == 7
    assert trees.floats_bytes(tree) == 6 * 2 + 5 * 4
    assert trees.floats_bytes(jax.random.split(jax.random.key(0), 3)) == 3 * 8  # two words each
    assert trees.count({}) == trees.floats_bytes({}) == 0


def test_names_are_paths():
    tree = {"layers": [{"weight": jnp.zeros(2)}, {"weight": jnp.zeros(2)}], "gain": jnp.zeros(())}
    assert trees.names(tree) == ["gain", "layers.0.weight", "layers.1.weight"]
    assert trees.names(jnp.zeros(2)) == ["params"]


def test_unit_vectors_are_the_standard_basis():
    unit = trees.elements(A)
    assert jax.tree.structure(unit(0)) == jax.tree.structure(A)
    np.testing.assert_array_equal(jax.vmap(lambda i: trees.ravel(unit(i)))(jnp.arange(7)), np.eye(7))


@pytest.mark.parametrize("like", [jnp.zeros(4000), {"x": jnp.zeros((20, 100)), "y": jnp.zeros(2000)}])
def test_normals_are_standard_and_independent(like):
    """Kolmogorov-Smirnov and a correlation of 2,000 pairs, at a level of 1e-5 on a fixed key."""
    drawn = np.asarray(trees.ravel(trees.standard_normal(jax.random.key(2), like)))
    assert kstest(drawn, "norm").pvalue > 1e-5
    assert abs(np.corrcoef(drawn[:2000], drawn[2000:])[0, 1]) < 4.4 / np.sqrt(2000)


def test_normals_have_the_types_of_the_leaves_and_the_key_of_a_lone_leaf():
    like = {"x": jax.ShapeDtypeStruct((3,), jnp.float32), "y": jnp.zeros(2, jnp.float16)}
    drawn = trees.standard_normal(jax.random.key(2), like)
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in drawn.items()} == {
        "x": ((3,), jnp.float32),
        "y": ((2,), jnp.float16),
    }
    alone = trees.standard_normal(jax.random.key(2), jnp.zeros(3))
    np.testing.assert_array_equal(alone, jax.random.normal(jax.random.key(2), (3,)))


def test_the_machine_epsilon_of_a_tree_is_the_largest_of_its_leaves(x64):
    assert trees.machine_epsilon({"a": jnp.ones(1, jnp.float64)}) == np.finfo(np.float64).eps
    assert trees.machine_epsilon({"a": jnp.ones(1, jnp.float64), "b": jnp.ones(1, jnp.float32)}) == np.finfo("f4").eps


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"w": jnp.zeros(2)}, ""),
        ({"v": jnp.zeros(2)}, "make them match"),
        ({"w": jnp.zeros(3)}, "has shape (3,) for `w`, which has shape (2,); make them equal"),
        ({"w": jnp.zeros(2, jnp.float16)}, "has dtype float16 for `w`, which has float32"),
    ],
)
def test_a_mismatch_is_a_sentence(tree, sentence):
    difference = trees.mismatch(tree, {"w": jnp.zeros(2)}, "f(x)")
    assert sentence in difference
    assert bool(difference) == bool(sentence)
