"""The error of a predicted mean, measured by runs of SGD: closed forms, and its own statistics."""

import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.dynamics.simulated_error import simulate_error

ETA, STEPS = 0.1, 200


def bowl():
    """Return w^2/2 with additive noise: the mean is (1 - eta)^k w, the variance eta s^2/(2 - eta) at the end."""
    task = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    return ut.Isotropic(task, 0.5), jnp.full(4, 2.0)


def test_the_distance_and_the_spread_equal_closed_forms(x64):
    noise, start = bowl()
    mean = (1 - ETA) ** STEPS * np.asarray(start)
    error = simulate_error(noise, start, mean + np.array([0.3, 0, 0, -0.4]), ETA, STEPS, 2048)
    variance = ETA * 0.5**2 / (2 - ETA) * start.size
    assert error.spread == pytest.approx(np.sqrt(variance), rel=0.05)
    assert error.standard_error == pytest.approx(np.sqrt(variance / 2048), rel=0.05)
    assert error.distance == pytest.approx(0.5, abs=4 * error.standard_error)
    assert error.significant


@pytest.mark.parametrize("seeds", [64, 512])
def test_an_exact_prediction_has_no_significant_error(seeds, x64):
    noise, start = bowl()
    error = simulate_error(noise, start, (1 - ETA) ** STEPS * np.asarray(start), ETA, STEPS, seeds)
    assert not error.significant
    assert error.distance <= 3 * error.standard_error


def test_diverged_runs_leave_no_distance(x64):
    noise, start = bowl()
    error = simulate_error(noise, start, np.zeros(4), 3.0, 2000, 64)
    assert error.diverged == 64
    assert np.isnan(error.distance)
    assert not error.significant
