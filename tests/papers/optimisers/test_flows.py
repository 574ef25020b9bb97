"""The prediction of an observable: its value at the mean plus half the trace of its curvature times the covariance."""

import jax.numpy as jnp
import numpy as np

import undertow as ut
from undertow.papers.optimisers._flows import predicted_mean


def test_the_mean_of_a_square_has_the_stationary_variance_of_sgd(x64):
    """SGD with isotropic noise of scale s on a bowl of curvature 1 has the variance eta s^2/(2 - eta)."""
    bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    eta, scale = 0.5, 0.3
    square = {"square": lambda w: w[0] ** 2}
    flow = ut.average(
        ut.Isotropic(bowl, scale), jnp.array([1.0]), step_size=eta, time=100.0, num_saves=1, observe=square
    )
    np.testing.assert_allclose(predicted_mean(flow, "square")[-1], eta * scale**2 / (2 - eta), rtol=1e-5)
    np.testing.assert_allclose(predicted_mean(flow, "square")[0], 1.0)
