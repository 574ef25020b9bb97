"""Moments of growth factors against other representations of the same integrals, on random laws."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import dawsn, gammaln, hyp1f1

from undertow.sensing.factors import (
    gaussian_log_moment,
    gaussian_mean_log,
    log_factor,
    uniform_log_moment,
    uniform_mean_log,
)


def numbers(count=40):
    """Return means, sizes and powers of random laws of x, about half of which cover the singularity at x = -1."""
    rng = np.random.default_rng(0)
    means = rng.choice([-1.0, 1.0], count) * 10 ** rng.uniform(-3, 1, count)
    return zip(means, 10 ** rng.uniform(-1.3, 1, count), 10 ** rng.uniform(-3, 1.5, count), strict=True)


def test_the_log_moment_of_a_gaussian_is_its_confluent_hypergeometric_function():
    """E|N(c, s^2)|^k = s^k 2^(k/2) Gamma((k+1)/2)/sqrt(pi) 1F1(-k/2; 1/2; -c^2/(2 s^2)), Kummer transformed."""
    for mean, deviation, power in numbers():
        z = min(((1 + mean) / deviation) ** 2 / 2, 600.0)  # beyond this value exp(z) overflows in the reference
        deviation = abs(1 + mean) / math.sqrt(2 * z)
        exact = power * math.log(deviation * math.sqrt(2)) + gammaln((power + 1) / 2) - math.log(math.pi) / 2
        exact += math.log(hyp1f1((power + 1) / 2, 0.5, z)) - z
        np.testing.assert_allclose(gaussian_log_moment(mean, deviation, power), exact, rtol=1e-10, atol=1e-11)


def test_the_mean_log_of_a_gaussian_is_an_integral_of_dawsons_function():
    """d/dr E log|r + z| = sqrt(2) D(r/sqrt(2)) for a standard normal z, and E log|z| = -(gamma + log 2)/2."""
    for mean, deviation, _ in [*numbers(), (29.0, 15.0, 0.0), (-301.0, 100.0, 0.0)]:
        slope = lambda r: math.sqrt(2) * dawsn(r / math.sqrt(2))
        rise, _ = quad(slope, 0, abs(1 + mean) / deviation, epsabs=1e-13, epsrel=1e-13, limit=200)
        exact = math.log(deviation) - (np.euler_gamma + math.log(2)) / 2 + rise
        np.testing.assert_allclose(gaussian_mean_log(mean, deviation), exact, atol=1e-11)


def test_uniform_factors_against_quadrature_split_at_the_singularity():
    for mean, half, power in numbers():
        low, high = mean - half, mean + half
        integral = lambda f, low=low, high=high: (
            quad(f, low, high, points=[-1.0] if low < -1 < high else None, epsabs=1e-12, epsrel=1e-12, limit=400)[0]
            / (high - low)
        )
        moment = math.log(integral(lambda x, k=power: abs(1 + x) ** k))
        np.testing.assert_allclose(uniform_log_moment(low, high, power), moment, atol=1e-9)
        np.testing.assert_allclose(uniform_mean_log(low, high), integral(log_factor), atol=1e-9)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_small_steps_lose_no_digits_to_cancellation(size):
    """To second order E log(1 + x) = E x - E x^2/2, and log E(1 + x)^k = k E x + (k(k-1) E x^2 - k^2 (E x)^2)/2."""
    mean, deviation = -0.4, 0.7
    half = math.sqrt(3) * deviation
    second = mean**2 + deviation**2
    expected = mean * size - second * size**2 / 2
    power = 1.6  # any fixed power: the third order is far below the tolerance
    moment = power * mean * size + (power * (power - 1) * second - (power * mean) ** 2) * size**2 / 2
    for value in (
        gaussian_mean_log(mean * size, deviation * size),
        uniform_mean_log((mean - half) * size, (mean + half) * size),
    ):
        np.testing.assert_allclose(value, expected, rtol=3 * size**2 + 1e-8)
    for value in (
        gaussian_log_moment(mean * size, deviation * size, power),
        uniform_log_moment((mean - half) * size, (mean + half) * size, power),
    ):
        np.testing.assert_allclose(value, moment, rtol=3 * size**2 + 1e-6)


def test_large_powers_do_not_overflow():
    """log E|1 + x|^k tends to k m + k^2 s^2/2 for small m and s, and to the largest factor for an interval."""
    np.testing.assert_allclose(gaussian_log_moment(2e-6, 1e-6, 1e6), 2 + 0.5, rtol=1e-5)
    power = 1e7
    np.testing.assert_allclose(uniform_log_moment(-5.0, 1.0, power) / power, math.log(4), rtol=1e-5)


def test_laws_of_width_zero():
    assert log_factor(-1.0) == -math.inf
    for x in (-3.0, -0.5, 0.25):
        exact = math.log(abs(1 + x))
        np.testing.assert_allclose([log_factor(x), uniform_mean_log(x, x), gaussian_mean_log(x, 0.0)], exact)
        np.testing.assert_allclose([uniform_log_moment(x, x, 2.5), gaussian_log_moment(x, 0.0, 2.5)], 2.5 * exact)
    # an interval that ends at the singularity, or lies around it: the integral of log y over (0, 1) is -1
    np.testing.assert_allclose([uniform_mean_log(-1.0, 0.0), uniform_mean_log(-2.0, 0.0)], -1)
    np.testing.assert_allclose([uniform_log_moment(-1.0, 0.0, 0.5), uniform_log_moment(-2.0, 0.0, 0.5)], -math.log(1.5))


@pytest.mark.parametrize("offset", [0.0, 1e-8])
def test_gaussian_factors_centred_on_the_singularity(offset):
    """E log|s z| = log s - (gamma + log 2)/2 and E|s z|^k = (s sqrt 2)^k Gamma((k+1)/2)/sqrt(pi) for a standard z."""
    s, k = 0.7, 1.5
    exact = math.log(s) - (np.euler_gamma + math.log(2)) / 2
    np.testing.assert_allclose(gaussian_mean_log(-1 + offset, s), exact, atol=1e-11)
    moment = k * math.log(s * math.sqrt(2)) + gammaln((k + 1) / 2) - math.log(math.pi) / 2
    np.testing.assert_allclose(gaussian_log_moment(-1 + offset, s, k), moment, atol=1e-11)
