"""The handwritten digits: principal components as inputs, standardised one-hot labels as targets."""

import jax.numpy as jnp
import numpy as np
import pytest

from undertow.papers.noise_equilibrium.models.digits import digits


def test_inputs_are_uncorrelated_components_in_the_order_of_their_variance(x64):
    inputs, _ = digits(12, jnp.float64)
    moment = np.asarray(inputs.T @ inputs / len(inputs))
    assert np.allclose(moment, np.diag(np.diag(moment)), atol=1e-10)
    assert np.all(np.diff(np.diag(moment)) < 0)
    assert np.isclose(np.mean(np.asarray(inputs) ** 2), 1.0)


def test_targets_are_standardised_and_of_rank_nine(x64):
    _, targets = digits(5, jnp.float64)
    assert np.allclose(np.mean(targets, axis=0), 0.0, atol=1e-12)
    assert np.allclose(np.std(targets, axis=0), 1.0)
    assert np.linalg.matrix_rank(np.asarray(targets)) == 9  # the ten labels of a sample sum to one


def test_more_components_than_pixels_that_vary_raise():
    with pytest.raises(ValueError, match="61 of the 64 pixels vary"):
        digits(62)
