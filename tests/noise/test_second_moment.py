"""Mean squares of stochastic gradients and their derivatives, against those of `second_moment` along each direction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow._trees import ravel
from undertow.noise import second_moment as module
from undertow.noise.base import second_moment
from undertow.noise.second_moment import sampled_squares, squares_along


def _task(outputs, weights=None):
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(5, 3)), rng.normal(size=(5, outputs) if outputs > 1 else 5)
    matrix = jnp.asarray(rng.normal(size=(outputs, 3)))

    def predict(p, x):
        values = p["b"] + jnp.tanh(matrix * p["w"][None] @ x)
        return values if outputs > 1 else values[0]

    task = ut.Regression(predict, jnp.asarray(inputs), jnp.asarray(targets))
    return task if weights is None else task.reweight(jnp.asarray(weights))


NOISES = {
    "labels": lambda: ut.LabelNoise(_task(1), 0.7),
    "labels, two outputs, a batch": lambda: ut.LabelNoise(_task(2), 0.7, batch_size=2, replace=False),
    "labels, weights": lambda: ut.LabelNoise(_task(1, np.array([0.1, 0.2, 0.3, 0.3, 0.1])), 0.7),
    "batch of one": lambda: ut.Minibatch(_task(2), 1),
    "batch of three": lambda: ut.Minibatch(_task(1), 3),
    "no samples": lambda: ut.Isotropic(_task(1), 0.3),
}


PARAMS = {"w": jnp.array([0.3, -0.8, 1.2]), "b": jnp.array(0.4)}


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("name", NOISES)
def test_the_derivatives_are_those_of_the_second_moment(name, samples, monkeypatch, x64):
    noise, rng = NOISES[name](), np.random.default_rng(1)
    point, unravel = jax.flatten_util.ravel_pytree(jax.tree.map(lambda x: x.astype(float), PARAMS))
    left, right = (jnp.asarray(rng.normal(size=(4, 2))) for _ in range(2))
    monkeypatch.setattr(module, "CACHED_BYTES", samples * left.size * 8)
    along = jax.jit(lambda x: squares_along(noise, unravel, x, left, right))(point)
    squares = lambda x: ravel(second_moment(noise, unravel(x)))
    value, slopes, hessian = jax.jit(lambda x: (squares(x), jax.jacfwd(squares)(x), jax.hessian(squares)(x)))(point)
    np.testing.assert_allclose(along.value, value, rtol=1e-12)
    np.testing.assert_allclose(along.slopes, slopes @ left, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(along.second, jnp.einsum("ijk,jm,km->i", hessian, left, right), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in NOISES if name != "no samples"])
def test_the_terms_of_all_samples_sum_to_the_second_moment(name, x64):
    noise = NOISES[name]()
    sampled = sampled_squares(noise)

    @jax.jit
    def total(params):
        terms = jax.vmap(lambda sample: ravel(sampled.each(params, sample)))(sampled.samples)
        rest = 0.0 if sampled.rest is None else ravel(sampled.rest(params))
        return jnp.sum(terms, axis=0) + rest, ravel(second_moment(noise, params))

    np.testing.assert_allclose(*total(jax.tree.map(lambda x: x.astype(float), PARAMS)), rtol=1e-12)
