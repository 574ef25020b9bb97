"""The closed forms on arrays: the balance of noise and weight decay with PyTorch's lambda."""

import jax
import numpy as np
import pytest

from undertow.torch.equilibrium.charge_moments import ChargeMoments
from undertow.torch.equilibrium.closed_forms import (
    gl_amounts,
    mean_eigenpairs,
    relaxation_times,
    rescaling_amounts,
)

pytestmark = pytest.mark.torch

STEP, DECAY = 0.1, 0.03


def positive(seed, blocks=3, width=4):
    drawn = np.random.default_rng(seed).normal(size=(blocks, width, 2 * width))
    return drawn @ drawn.swapaxes(1, 2)


def test_the_flow_of_rescaled_neurons_is_zero():
    """The flow h (-2 lambda C + h/2 (noise_plus - noise_minus)) is 0 at the moved point."""
    plus, minus, out, into = np.random.default_rng(0).uniform(0.5, 2, size=(4, 6))
    amount = rescaling_amounts(ChargeMoments(plus, minus, out, into), STEP, DECAY)
    up = np.exp(2 * amount)
    charge, noise = (out * up - into / up) / 2, plus / up - minus * up
    np.testing.assert_allclose(-2 * DECAY * charge + STEP / 2 * noise, 0, atol=1e-14)


def test_amounts_for_one_sided_noise_and_no_noise():
    zero, one = np.array([0.0, 0.0]), np.array([1.0, 0.0])
    amount = rescaling_amounts(ChargeMoments(one, zero, zero + 1, zero + 1), STEP, 0.0)
    assert np.isinf(amount[0])
    assert np.isnan(amount[1])


def test_the_flow_of_moved_blocks_is_zero():
    moments = ChargeMoments(*(positive(seed) for seed in range(4)))
    amount, infinite, dead = gl_amounts(moments, STEP, DECAY, 1e-10)
    assert (infinite, dead) == (0, 0)
    np.testing.assert_allclose(amount, amount.swapaxes(1, 2), atol=1e-12)
    values, vectors = np.linalg.eigh(amount)
    factor = (vectors * np.exp(values)[:, None]) @ vectors.swapaxes(1, 2)
    shrunk = np.linalg.inv(factor)
    moved = lambda matrix, by: by @ matrix @ by
    charge = (moved(moments.weight_plus, factor) - moved(moments.weight_minus, shrunk)) / 2
    noise = moved(moments.noise_plus, shrunk) - moved(moments.noise_minus, factor)
    np.testing.assert_allclose(-2 * DECAY * charge + STEP / 2 * noise, 0, atol=1e-10)


def test_the_geometric_mean_satisfies_its_equation():
    a, b = positive(0), positive(1)
    values, vectors = mean_eigenpairs(a, b)
    x = (vectors * values[:, None]) @ vectors.swapaxes(1, 2)
    np.testing.assert_allclose(x @ b @ x, a, rtol=1e-9)


def test_relaxation_times_equal_the_formula():
    noise, weight = np.array([4.0, 1.0]), np.array([2.0, 1.0])
    expected = 1 / (STEP * (2 * DECAY + STEP * noise / weight))
    np.testing.assert_allclose(relaxation_times(noise, weight, STEP, DECAY), expected)


def test_the_precision_setting_of_jax_does_not_change():
    before = jax.config.jax_enable_x64
    rescaling_amounts(ChargeMoments(*np.ones((4, 2))), STEP, DECAY)
    assert jax.config.jax_enable_x64 == before
