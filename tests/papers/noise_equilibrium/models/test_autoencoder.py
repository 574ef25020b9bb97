"""Autoencoders: the loss of every activation, and the cosine of their latent matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow.papers.noise_equilibrium.models.autoencoder import ACTIVATIONS, AutoencoderLoss, latent_cosine
from undertow.papers.noise_equilibrium.models.linear_nets import GaussianPairs, fan_in, loud_first, split_variance

N, HIDDEN = 4, 3
DTYPE = jnp.float64


@pytest.fixture
def law(x64):
    return GaussianPairs(split_variance(N, 0.4, DTYPE), loud_first(N, dtype=DTYPE))


def test_losses_equal_the_formulas(law):
    params = fan_in(jax.random.key(1), inputs=N, hidden=HIDDEN, dtype=DTYPE)
    sample = law(jax.random.key(2))
    (x, y), u, w = (np.asarray(v) for v in sample), np.asarray(params["U"]), np.asarray(params["W"])
    h = w @ x
    acts = {"linear": h, "tanh": np.tanh(h), "relu": np.maximum(h, 0), "leaky": np.where(h > 0, h, 0.01 * h),
            "swish": h / (1 + np.exp(-h))}  # fmt: skip
    assert set(acts) == set(ACTIVATIONS)
    for name, a in acts.items():
        np.testing.assert_allclose(AutoencoderLoss(name)(params, sample), np.sum((u @ a - y) ** 2), rtol=1e-12)
    with pytest.raises(ValueError, match="choose one of linear, tanh"):
        AutoencoderLoss("gelu")


def test_the_cosine_of_balanced_layers_is_one(law):
    w = jax.random.normal(jax.random.key(8), (HIDDEN, N), DTYPE)
    balanced = {"W": w / jnp.sqrt(law.input_variance)[None], "U": w.T / jnp.sqrt(law.noise_variance)[:, None]}
    np.testing.assert_allclose(latent_cosine(balanced, law), 1.0, rtol=1e-12)
