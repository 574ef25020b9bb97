"""The third cumulant of a stochastic gradient, against the list of all draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.manifold.skewness import skewness


def task():
    x = jnp.array([[1.0, 0.5], [0.3, -1.0], [2.0, 0.2]])
    return ut.Regression(lambda p, z: jnp.tanh(z @ p[:2]) * p[2], x, jnp.array([1.0, -0.4, 0.3]))


POINT = np.array([0.4, -0.2, 1.5])


def third_cumulant(draws):
    centred = np.asarray(draws) - np.mean(draws, axis=0)
    return np.einsum("ni,nj,nk->ijk", centred, centred, centred) / len(centred)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_minibatches(batch_size, x64):
    problem = task()
    noise = ut.Minibatch(problem, batch_size)
    gradients = problem.sample_gradients(jnp.asarray(POINT))
    draws = [jnp.mean(jnp.stack(batch), axis=0) for batch in itertools.product(gradients, repeat=batch_size)]
    np.testing.assert_allclose(skewness(noise.covariance(jnp.asarray(POINT)), 3), third_cumulant(draws), atol=1e-12)


def test_label_noise_has_a_common_part_with_the_batch(x64):
    problem = task()
    noise = ut.LabelNoise(problem, 0.7)
    draws = [
        noise.gradient(jnp.asarray(POINT), (jnp.array(i), jnp.array(sign))) for i in range(3) for sign in (-1.0, 1.0)
    ]
    expected = third_cumulant(draws)
    np.testing.assert_allclose(skewness(noise.covariance(jnp.asarray(POINT)), 3), expected, atol=1e-12)
    alone = skewness(ut.Minibatch(problem, 1).covariance(jnp.asarray(POINT)), 3)
    assert np.abs(expected - alone).max() > 0.1 * np.abs(expected).max()


def test_symmetric_noise_has_none():
    bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    covariance = ut.Isotropic(bowl, 1.0).covariance(jnp.ones(2))
    assert not jax.numpy.any(skewness(covariance, 2))
