"""Bursts of a filtered signal: the exponent of their tail, and their probability against recursions in NumPy."""

import jax
import numpy as np
import pytest

import undertow as ut
from undertow.sensing.bursts import BLOCK, burst_exponent, burst_probability
from undertow.sensing.laws import Gaussian, Table, Uniform, two_point

MANY = 10**9
"""The number of measurements; the noise of the mean over them is below 1e-4."""


@pytest.mark.parametrize("law", [two_point(0.5, 8.0), Uniform(-12.0, 12.0), Gaussian(0.2, 7.0)])
def test_the_burst_exponent_is_that_of_the_damped_signal(law):
    kappa = burst_exponent(law, 0.05)
    factors = np.abs(1 + 0.05 * (np.asarray(law.draw(jax.random.key(0), 400_000), np.float64) - 1)) ** kappa
    assert abs(factors.mean() - 1) < 5 * factors.std() / np.sqrt(len(factors))
    np.testing.assert_allclose(burst_exponent(two_point(1.0, 8.0), 0.05), 1.0, rtol=1e-6)


def test_burst_probabilities_of_zero_and_one_have_an_interval():
    """After 16 runs without a burst the exact 95 % limit of the probability is 1 - 0.025^(1/16)."""
    sensing = ut.MatrixSensing(3, 1000, two_point(0.0, 1.0))
    limit = 1 - 0.025 ** (1 / 16)
    for level, share, interval in ((1e3, 0.0, (0, limit)), (1e-9, 1.0, (1 - limit, 1))):
        probability = burst_probability(sensing, 0.05, steps=40, level=level, runs=16)
        assert probability.value == share
        np.testing.assert_allclose(probability.interval(), interval, atol=1e-9)
        assert 0.05 < probability.standard_error < limit


@pytest.mark.parametrize("alpha", [0.1, 0.02])
def test_without_noise_the_maximum_is_that_of_the_recursion(alpha):
    """With one environment and so many measurements that G = M, U <- U - eta (UU' - A* - A) U has the same maximum."""
    law, eta, steps = Table([[0.8, 0.1]]), 0.05, BLOCK + 8
    sensing = ut.MatrixSensing(5, MANY, law, spectrum=[0.25], key=jax.random.key(1))
    truth, v = np.asarray(sensing.truth), np.asarray(sensing.problem.directions)
    assert sensing.overlap > 0.1  # the true signal leaks into the spurious directions
    u, top = np.concatenate([truth * np.sqrt(0.25), alpha * v], axis=1), 0.0
    for _ in range(steps):
        residual = u @ u.T - 0.25 * truth @ truth.T - v @ np.diag([0.8, 0.1]) @ v.T
        u = u - eta * residual @ u
        top = max(top, ((u.T @ v) ** 2).sum(0).max())
    for level, share in ((0.99 * top, 1.0), (1.01 * top, 0.0)):
        assert burst_probability(sensing, eta, steps=steps, level=level, alpha=alpha, runs=4).value == share


def test_every_step_draws_its_own_environment():
    """The share of runs of q <- q (1 + eta (s - q^2)) above a level; repeated blocks would double its spread."""
    eta, spread, alpha, steps, level = 0.05, 4.0, 1e-3, 6 * BLOCK, 4e-5
    rng, q = np.random.default_rng(0), np.full(20_000, alpha)
    top = q**2
    for _ in range(steps):
        q = q * (1 + eta * (spread * rng.choice([-1.0, 1.0], len(q)) - q**2))
        top = np.maximum(top, q**2)
    sensing = ut.MatrixSensing(2, MANY, two_point(0.0, spread))
    probability = burst_probability(sensing, eta, steps=steps, level=level, alpha=alpha, runs=1000)
    assert abs(probability.value - (top > level).mean()) < 5 * probability.standard_error


def test_a_run_that_diverges_is_a_burst():
    sensing = ut.MatrixSensing(2, 100, [-100.0])
    assert burst_probability(sensing, 0.5, steps=60, level=np.inf, alpha=1.0, runs=4).value == 1


@pytest.mark.slow
def test_bursts_have_the_tail_of_the_damped_law():
    """Full runs at two spreads have the exponent of s - 1, and not that of s (0.37 and 0.60)."""
    for spread in (8.0, 10.0):
        sensing = ut.MatrixSensing(5, 1600, two_point(1.0, spread))
        run = ut.descend(sensing, sensing.start(1e-3), step_size=0.05, steps=4000, key=0, seeds=256, lane_width=256,
                         every=10, observe={"leaked": lambda u: u[1] @ u[1]}, progress=False)  # fmt: skip
        size = np.sqrt(run.observed["leaked"][:, 40:])
        share = lambda level, size=size: (size > level).mean(1)
        groups = np.array_split(np.arange(256), 16)
        slopes = [np.log(share(0.06)[g].mean() / share(0.24)[g].mean()) / np.log(4) for g in groups]
        assert abs(np.mean(slopes) - 1) < 0.15


@pytest.mark.slow
def test_the_burst_probability_is_that_of_full_runs():
    for spread in (5.0, 9.0):
        sensing = ut.MatrixSensing(6, 20_000, two_point(1.0, spread))
        run = ut.descend(sensing, sensing.start(1e-3), step_size=0.05, steps=1200, key=0, seeds=256, lane_width=256,
                         every=1, observe={"leaked": lambda u: u[1] @ u[1]}, progress=False)  # fmt: skip
        full = np.nanmax(run.observed["leaked"][:, 200:], axis=1) > 0.5
        probability = burst_probability(sensing, 0.05, steps=1000)
        assert abs(full.mean() - float(probability.value)) < 0.15
