"""Noise and weights of both sides against explicit covariances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.analysis.sides import SideMoments, flow_vectors, measure, sides_of

DATA = nets.data(samples=5)


def dense(noise, params):
    """Return the covariance as a matrix, and the flat params."""
    flat, _ = jax.flatten_util.ravel_pytree(params)
    gradients = jnp.stack([
        jax.flatten_util.ravel_pytree(noise.problem.batch_gradient(params, jnp.array([k])))[0] for k in range(5)
    ])  # fmt: skip
    return np.cov(np.asarray(gradients, np.float64).T, bias=True) / noise.batch_size, np.asarray(flat, np.float64)


def square_and_factor(p, s):
    return nets.square(p["a"] ** 2 * (p["b"] @ s[0]), s[1][0])


GENERATORS = {
    "a diagonal": (
        square_and_factor, {"a": jnp.array(1.5), "b": jnp.array([1.0, -0.5])},
        ut.Exponential({"a": jnp.array(1.0), "b": jnp.full(2, -2.0)}), np.diag([1.0, -2.0, -2.0]),
    ),
    "a function": (
        lambda p, s: nets.square((p[0] ** 2 - p[1] ** 2) * s[0][0], s[1][0]), jnp.array([2.0, 0.5]),
        ut.Exponential(lambda v: v[::-1]), np.array([[0.0, 1.0], [1.0, 0.0]]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", GENERATORS)
def test_the_two_sides_of_a_general_generator_are_its_positive_and_negative_part(kind):
    """Tr[Sigma A+] and Tr[Sigma A-], with A+ and A- from the eigenvectors of A."""
    loss, params, symmetry, matrix = GENERATORS[kind]
    noise = ut.Minibatch(ut.Problem(loss, DATA), 2)
    covariance, flat = dense(noise, params)
    values, vectors = np.linalg.eigh(matrix)
    plus = (vectors * np.maximum(values, 0)) @ vectors.T
    minus = plus - matrix
    found, error = measure(noise, params, symmetry)
    expected = [np.trace(covariance @ plus), np.trace(covariance @ minus), flat @ plus @ flat, flat @ minus @ flat]
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-4, atol=1e-6)
    assert error == 0


def test_neurons_have_a_number_each():
    params = nets.relu_params(3, 3)
    noise = ut.Minibatch(ut.Problem(nets.relu_net, DATA), 2)
    found, _ = measure(noise, params, nets.RELU_LAYERS[0])
    assert flow_vectors(found, 0.1, 0.0) is None
    sides = sides_of(found, None)
    np.testing.assert_allclose(sides.charges, nets.RELU_LAYERS[0].charge(params), rtol=1e-5)
    flow = ut.noether_flow(noise, params, nets.RELU_LAYERS[0], step_size=0.1, weight_decay=0.3)
    up, down = sides.pushes(0.1, 0.3)
    np.testing.assert_allclose(0.1 / 2 * (up - down), flow.rate, rtol=1e-4, atol=1e-6)


def test_a_matrix_of_charges_is_shown_along_the_eigenvectors_of_its_flow():
    """Up minus down are then the eigenvalues of the flow over eta/2, and sums are traces."""
    params = nets.weights(U=(4, 3), W=(3, 4))
    noise = ut.Minibatch(ut.Problem(nets.linear_net, nets.data(samples=5, inputs=4, outputs=4)), 2)
    found, _ = measure(noise, params, nets.FACTORS)
    sides = sides_of(found, flow_vectors(found, 0.1, 0.3))
    up, down = sides.pushes(0.1, 0.3)
    flow = ut.noether_flow(noise, params, nets.FACTORS, step_size=0.1, weight_decay=0.3)
    np.testing.assert_allclose(0.1 / 2 * (up - down), np.linalg.eigvalsh(flow.rate), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sides.charges.sum(), np.trace(flow.charge), rtol=1e-5)


def test_blocks_of_matrices_are_listed_one_after_another():
    blocks = np.stack([np.diag([2.0, 1.0]), np.diag([3.0, 4.0])])
    moments = SideMoments(blocks, 0 * blocks, blocks, 0 * blocks)
    sides = sides_of(moments, flow_vectors(moments, 1.0, 0.0))
    np.testing.assert_allclose(sides.noise_plus, [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(sides.charges, [0.5, 1.0, 1.5, 2.0])
