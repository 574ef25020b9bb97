"""The precision of computations with symmetries: types of arrays, and types inside a loss."""

import jax
import jax.numpy as jnp
import pytest

from undertow.symmetry import precision


def test_only_half_precision_is_converted_to_single():
    tree = {"half": jnp.ones(2, jnp.bfloat16), "single": jnp.ones(2), "number": jnp.ones(2, int), "other": "text"}
    wide = precision.widened(tree)
    assert {name: leaf.dtype.name for name, leaf in wide.items() if name != "other"} == {
        "half": "float32", "single": "float32", "number": tree["number"].dtype.name,
    }  # fmt: skip
    assert wide["other"] == "text"


@pytest.mark.parametrize(("name", "half"), [("float16", True), ("bfloat16", True), ("float32", False), ("int8", False)])
def test_half_precision_is_floating_point_below_32_bits(name, half):
    assert precision.is_half(jnp.dtype(name)) == half


HALF = jnp.bfloat16
LOSSES = {
    "no cast": (lambda p, s: jnp.sum(p * s), "float64"),
    "a cast of params": (lambda p, s: jnp.sum(p.astype(jnp.float32) * s), "float32"),
    "a cast inside a compiled function": (lambda p, s: jax.jit(lambda q: jnp.sum(q.astype(HALF)))(p), "bfloat16"),
    "a cast of data only": (lambda p, s: jnp.sum(p) + jnp.sum(s.astype(HALF)).astype(p.dtype), "float64"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_the_coarsest_type_between_params_and_loss(case, x64):
    loss, name = LOSSES[case]
    assert precision.coarsest(loss, jnp.ones(3, jnp.float64), jnp.ones(3, jnp.float64)).name == name
