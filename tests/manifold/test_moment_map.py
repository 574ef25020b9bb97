"""The map of the cumulants of SGD, against the enumeration of all its draws."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.manifold.moment_map import Cumulants, MomentMap

X = jnp.array([[1.0, 0.3], [-0.4, 1.2], [0.7, -0.9]])
Y = jnp.array([0.5, -1.0, 2.0])


def enumerate_sgd(inputs, targets, strength, batch_size, eta, start, steps):
    """Return the first three cumulants of SGD on a linear model after all equally likely draws."""
    signs = (-1, 1) if strength else (0,)
    one = list(itertools.product(range(len(targets)), signs))
    points = np.asarray(start)[None]
    for _ in range(steps):
        after = []
        for batch in itertools.product(one, repeat=batch_size):
            gradients = [
                (points @ inputs[i] - targets[i] - strength * sign)[:, None] * inputs[i][None] for i, sign in batch
            ]
            after.append(points - eta * np.mean(gradients, axis=0))
        points = np.concatenate(after)
    mean = points.mean(0)
    x = points - mean
    return mean, np.einsum("na,nb->ab", x, x) / len(x), np.einsum("na,nb,nc->abc", x, x, x) / len(x)


@pytest.mark.parametrize(("strength", "batch_size", "steps"), [(0.0, 1, 4), (0.7, 1, 3), (0.0, 2, 3), (0.7, 2, 2)])
def test_linear_models_are_exact(strength, batch_size, steps, x64):
    """The cumulants of a linear model close: the curvatures of single samples are large here, eta |x|^2 about 0.6."""
    task = ut.Regression(lambda w, x: w @ x, X, Y)
    noise = ut.LabelNoise(task, strength, batch_size) if strength else ut.Minibatch(task, batch_size)
    eta, start = 0.4, jnp.array([0.2, -0.5])
    step = MomentMap(noise, lambda x: x, jnp.asarray(eta))
    cumulants = Cumulants(start, jnp.zeros((2, 2)), jnp.zeros((2, 2, 2)))
    for _ in range(steps):
        cumulants = step(cumulants)[0]
    expected = enumerate_sgd(np.asarray(X), np.asarray(Y), strength, batch_size, eta, start, steps)
    for value, exact in zip(cumulants, expected, strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-6, atol=1e-9)


def test_other_noises_keep_the_dependence_of_their_covariance(x64):
    """A linear model as a general problem: mean and covariance are exact, the third cumulant lacks the fluctuations."""
    task = ut.Problem(lambda w, s: (w @ s[0] - s[1]) ** 2 / 2, (X, Y))
    eta, start = 0.4, jnp.array([0.2, -0.5])
    step = MomentMap(ut.Minibatch(task, 1), lambda x: x, jnp.asarray(eta))
    cumulants = Cumulants(start, jnp.zeros((2, 2)), jnp.zeros((2, 2, 2)))
    one = step(cumulants)[0]
    for value, exact in zip(one, enumerate_sgd(np.asarray(X), np.asarray(Y), 0.0, 1, eta, start, 1), strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-6, atol=1e-9)
    two = step(one)[0]
    mean, covariance, _ = enumerate_sgd(np.asarray(X), np.asarray(Y), 0.0, 1, eta, start, 2)
    np.testing.assert_allclose(two.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(two.covariance, covariance, rtol=1e-6)
