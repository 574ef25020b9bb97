"""The gain of the mean step by a fluctuating metric, against the moments of the linear recursion.

Near a minimum the steps are linear in z = (x, m, w), w the fluctuations of v, with additive noise, so that the second
moments M solve M = A M A' + Q.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import undertow as ut
from undertow._trees import ravel
from undertow.manifold.fluctuating_metric import averaged_second_moment, metric_at, metric_velocity, squares_around
from undertow.manifold.fluctuations import fluctuations
from undertow.manifold.metric import RescaledNoise
from undertow.noise.base import second_moment

SIZE, SAMPLES = 3, 5
RNG = np.random.default_rng(0)
FACTORS = RNG.normal(size=(SAMPLES, SIZE, SIZE)) / 2
CURVATURES = np.einsum("nij,nkj->nik", FACTORS, FACTORS) + 0.3 * np.eye(SIZE)
SHIFTS = RNG.gamma(0.5, size=(SAMPLES, SIZE))
SHIFTS = SHIFTS - SHIFTS.mean(axis=0)


def sampled():
    """Return batches of one quadratic loss; the mean loss has its minimum at 0."""
    data = (jnp.asarray(CURVATURES), jnp.asarray(SHIFTS))
    return ut.Minibatch(ut.Problem(lambda x, s: x @ s[0] @ x / 2 - s[1] @ x, data), 1)


def moments(metric, eta, b1, b2):
    """Return E[x x'], and E[m_i w_i] for each i, from the recursion of (x, m, w)."""
    k, hessian, eye, zero = 1 - b2, CURVATURES.mean(axis=0), np.eye(SIZE), np.zeros((SIZE, SIZE))
    slopes = -2 * np.einsum("ni,nij->ij", SHIFTS, CURVATURES) / SAMPLES
    momentum = np.hstack([(1 - b1) * hessian, b1 * eye, zero])
    transition = np.vstack(
        [
            np.hstack([eye, zero, zero]) - eta * metric[:, None] * momentum,
            momentum,
            np.hstack([k * slopes, zero, b2 * eye]),
        ]
    )
    noise = -SHIFTS
    squares = noise**2 - (noise**2).mean(axis=0)
    drive = np.hstack([-eta * metric * (1 - b1) * noise, (1 - b1) * noise, k * squares])
    second = scipy.linalg.solve_discrete_lyapunov(transition, drive.T @ drive / SAMPLES)
    return second[:SIZE, :SIZE], np.diag(second[SIZE : 2 * SIZE, 2 * SIZE :])


@pytest.mark.parametrize("b1", [0.0, 0.7])
@pytest.mark.parametrize("b2", [0.5, 0.9, 0.999])
def test_the_gain_is_that_of_the_stationary_moments(b1, b2, x64):
    noise, eta, point = sampled(), jnp.asarray(0.1), jnp.zeros(SIZE)
    optimiser = ut.Adam(b1=b1, b2=b2, eps=0.1)
    v = ravel(second_moment(noise, point))
    metric = metric_at(optimiser, v, point, lambda x: x)
    rescaled = RescaledNoise(noise, metric.root)
    memory = b1 if b1 else 0.0
    around = fluctuations(rescaled, point, lambda x: x, jnp.asarray(1e6), eta, "finite_step", memory)
    covariance, product = moments(np.asarray(metric.diagonal), float(eta), b1, b2)
    scaled = np.asarray(around.frame.normal * metric.root[:, None])
    np.testing.assert_allclose(float(eta) * scaled @ around.inner @ scaled.T, covariance, rtol=1e-9)
    slope = -(np.asarray(metric.diagonal) ** 2) / (2 * np.sqrt(v))
    gain = metric_velocity(rescaled, around, squares_around(rescaled, around), metric, eta, memory)
    np.testing.assert_allclose(gain, -slope * product, rtol=1e-8)


def test_the_metric_has_the_slope_the_rate_and_the_decay_of_the_optimiser(x64):
    v, params = jnp.array([0.25, 4.0]), jnp.array([1.0, 2.0])
    metric = metric_at(ut.AdamW(b2=0.99, eps=0.5, weight_decay=0.3), v, params, lambda x: x)
    np.testing.assert_allclose(metric.diagonal, 1 / (np.sqrt(v) + 0.5))
    np.testing.assert_allclose(metric.slope, -(metric.diagonal**2) / (2 * np.sqrt(v)))
    np.testing.assert_allclose(metric.rate, 0.01)
    np.testing.assert_allclose(metric.decay, 0.3)
    plain = metric_at(ut.SGD(momentum=0.5, weight_decay=0.1), None, params, lambda x: x)
    np.testing.assert_allclose(
        [plain.diagonal, plain.slope, plain.rate, plain.decay], [[2, 2], [0, 0], [0, 0], [0.2, 0.2]]
    )


def test_the_second_moment_is_averaged_over_the_fluctuations(x64):
    """E g^2 is quadratic in the params, so that its mean over draws of the fluctuations is exact."""
    noise, eta = sampled(), jnp.asarray(0.1)
    root = jnp.array([0.5, 1.0, 2.0])
    rescaled = RescaledNoise(noise, root)
    around = fluctuations(rescaled, jnp.zeros(SIZE), lambda x: x, jnp.asarray(1e6), eta, "finite_step")
    columns = np.sqrt(SIZE * float(eta)) * np.linalg.cholesky(around.inner).T @ np.asarray(around.frame.normal).T
    points = jnp.asarray(np.concatenate([columns, -columns])) * root[None]  # mean 0 and covariance X
    expected = jnp.mean(jax.vmap(lambda x: second_moment(noise, x))(points), axis=0)
    np.testing.assert_allclose(averaged_second_moment(squares_around(rescaled, around), eta), expected, rtol=1e-9)
