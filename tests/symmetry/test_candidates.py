"""Candidates: neurons, normalised rows and pairs of matrices."""

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut


def normal(k, *shape):
    return jax.random.normal(jax.random.key(k), shape, jnp.float64)


def drawn(samples=40, inputs=6):
    return jax.random.normal(jax.random.key(5), (samples, inputs), jnp.float64)


def test_rescaling_of_some_neurons_with_a_kernel_of_three_axes(x64):
    """Neurons 0 and 2 are ReLU, neuron 1 is tanh; the outgoing weights have their index in the middle."""

    def loss(p, x):
        hidden = p["in"] @ x
        hidden = jnp.where(jnp.array([True, False, True]), jax.nn.relu(hidden), jnp.tanh(hidden))
        return jnp.sum((jnp.einsum("ahb,h->ab", p["out"], hidden) - 1) ** 2)

    params = {"in": normal(0, 3, 6), "out": normal(1, 2, 3, 3)}
    (symmetry,) = ut.find_symmetries(ut.Problem(loss, drawn()), params)
    assert symmetry.describe(params) == "rescaling of 2 neurons, in against out"
    moved = symmetry.orbit(params, jnp.array([1.0, 2.0]))
    factor = jnp.exp(jnp.array([1.0, 0.0, 2.0]))
    np.testing.assert_allclose(moved["in"], params["in"] / factor[:, None], rtol=1e-12)
    np.testing.assert_allclose(moved["out"], params["out"] * factor[None, :, None], rtol=1e-12)


def test_normalised_rows_have_one_scaling_each(x64):
    """A vector that is normalised as a whole has one scaling."""

    def loss(p, x):
        rows = p["rows"] / jnp.linalg.norm(p["rows"], axis=1, keepdims=True)
        return jnp.sum((jnp.tanh(rows @ x) - jnp.tanh(p["whole"] @ x / jnp.linalg.norm(p["whole"]))) ** 2)

    params = {"rows": normal(0, 6, 7), "whole": normal(1, 7)}
    *several, one = ut.find_symmetries(ut.Problem(loss, drawn(inputs=7)), params)
    assert len(several) == 6
    for row, symmetry in enumerate(several):
        moved = symmetry.orbit(params, 0.5)
        np.testing.assert_allclose(moved["rows"], params["rows"].at[row].multiply(jnp.exp(0.5)), rtol=1e-12)
        np.testing.assert_array_equal(moved["whole"], params["whole"])
    moved = one.orbit(params, 0.5)
    np.testing.assert_allclose(moved["whole"], params["whole"] * jnp.exp(0.5), rtol=1e-12)
    np.testing.assert_array_equal(moved["rows"], params["rows"])


def test_the_order_of_incoming_and_outgoing_weights(x64):
    """Rows are incoming and columns outgoing weights; a side with two leaves is the incoming one."""
    x = drawn()
    one = lambda p, x: jnp.sum((p["a"] @ jax.nn.relu(p["z"] @ x) - 1) ** 2)
    params = {"a": normal(0, 2, 5), "z": normal(1, 5, 6)}
    (symmetry,) = ut.find_symmetries(ut.Problem(one, x), params)
    assert symmetry.describe(params) == "rescaling of 5 neurons, z against a"
    two = lambda p, x: (p["a"] @ jax.nn.relu(p["y"] @ x[:3] + p["z"] @ x[3:]) - 1) ** 2
    params = {"a": normal(0, 5), "y": normal(1, 5, 3), "z": normal(2, 5, 3)}
    (symmetry,) = ut.find_symmetries(ut.Problem(two, x), params)
    assert symmetry.describe(params) == "rescaling of 5 neurons, y, z against a"
