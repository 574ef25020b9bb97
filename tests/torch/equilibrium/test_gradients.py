"""The noise power against the covariance matrix, and its standard error."""

import numpy as np
import pytest

from undertow.estimate import Estimate
from undertow.torch.equilibrium.gradients import format_estimate, noise_power

pytestmark = pytest.mark.torch


def test_noise_power_against_the_covariance_matrix():
    gradients = np.random.default_rng(0).normal(size=(7, 30))
    power = noise_power(gradients @ gradients.T)
    assert power.value == pytest.approx(np.trace(np.cov(gradients.T)), rel=1e-12)


def test_the_standard_error_of_noise_power():
    """The standard error equals the spread over data sets. For 500 sets of 40 batches the ratio is accurate to 5 %."""
    draws = np.random.default_rng(1)
    estimates = [noise_power(g @ g.T) for g in draws.standard_t(10, size=(500, 40, 4))]
    scatter = np.std([power.value for power in estimates], ddof=1)
    assert np.sqrt(np.mean([power.standard_error**2 for power in estimates])) == pytest.approx(scatter, rel=0.15)


def test_two_gradients_give_no_standard_error_of_the_noise_power():
    gradients = np.random.default_rng(0).normal(size=(2, 5))
    power = noise_power(gradients @ gradients.T)
    assert power.value == pytest.approx(np.sum((gradients[0] - gradients[1]) ** 2) / 2)
    assert np.isnan(power.standard_error)


def test_an_unknown_error_is_not_shown():
    assert format_estimate(Estimate(0.08501, 0.00234, 9)) == "0.085 ± 0.002"
    assert format_estimate(Estimate(0.08501, np.nan, 9)) == "0.085"
