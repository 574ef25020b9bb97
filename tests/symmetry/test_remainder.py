"""Generators beyond the known families."""

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from undertow.symmetry.remainder import dense_generators


def total(symmetries, params):
    return sum(symmetry.dimension(params) for symmetry in symmetries)


def normal(k, *shape):
    return jax.random.normal(jax.random.key(k), shape, jnp.float64)


def drawn(samples=40, inputs=6):
    return jax.random.normal(jax.random.key(5), (samples, inputs), jnp.float64)


def test_symmetries_of_a_loss_of_a_subspace_with_an_unused_matrix(x64):
    """U -> U exp(A) keeps the range of U: two columns have three symmetric A and no further scaling."""

    def loss(p, x):
        q = jnp.linalg.qr(p["U"])[0]
        return jnp.sum((x - q @ (q.T @ x)) ** 2)

    params = {"U": normal(0, 4, 2), "W": normal(1, 2, 3)}
    assert total(ut.find_symmetries(ut.Problem(loss, drawn(inputs=4)), params), params) == 3


def test_a_generator_with_entries_on_and_off_the_diagonal(x64):
    """A function of c.p alone is unchanged along A with A c = 0: for c = (1, 2), A is (4, -2; -2, 1) up to a factor."""
    problem = ut.Problem(lambda p, x: jnp.sin(x[0] * (p[0] + 2 * p[1])), drawn(inputs=1))
    params = normal(3, 2)
    (symmetry,) = ut.find_symmetries(problem, params)
    matrix = dense_generators(symmetry, params)[0]
    np.testing.assert_allclose(matrix / matrix[1, 1], [[4.0, -2.0], [-2.0, 1.0]], atol=1e-5)


def test_dense_generators_are_the_derivatives_of_the_orbit(x64):
    diagonal = jnp.array([1.0, -2.0, 0.5])
    (matrix,) = dense_generators(ut.Exponential(diagonal), normal(4, 3))
    np.testing.assert_allclose(matrix, np.diag(diagonal), atol=1e-5)


def test_a_scale_free_leaf_among_rescaled_neurons(x64):
    """The direction of a * b is unchanged by three rescalings of neurons and by a scaling of all of a; c has none."""

    def loss(p, x):
        product = p["a"] * p["b"]
        return (x[:3] @ product / jnp.linalg.norm(product) + jnp.sin(p["c"] @ x[3:])) ** 2

    params = {"a": normal(6, 3), "b": normal(7, 3), "c": normal(8, 3)}
    symmetries = ut.find_symmetries(ut.Problem(loss, drawn()), params)
    assert [type(s).__name__ for s in symmetries] == ["Rescaling", "Scaling"]
    assert [s.dimension(params) for s in symmetries] == [3, 1]
