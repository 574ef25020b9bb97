"""The boundary of the phase diagram of stability, and the effect of the teleport on it."""

import math
from functools import partial

import jax
import numpy as np

from undertow.papers.noise_equilibrium import phase_diagram as stability


def test_the_mean_square_of_a_residual_is_constant_at_the_boundary():
    """E|a (1 - 2 eta s X)|^2 is 1 at the predicted step size, by sampling the second moment X of a batch."""
    n, batch, s = 10, 10, 3.0
    eta = 1 / (s * (1 + (n + 1) / batch))
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40_000, batch, n))
    first = np.einsum("kbi,kb->ki", x, x[:, :, 0]) / batch  # X e_1
    after = ((np.eye(n)[0] - 2 * eta * s * first) ** 2).sum(1)
    assert abs(after.mean() - 1) < 4 * after.std() / math.sqrt(len(after))


def test_the_teleport_keeps_the_function_and_lowers_the_stiffness():
    result = jax.jit(partial(stability.run, steps=5))(jax.random.key(0), step_size=0.001, imbalance=5.0)
    assert result["finite"] == result["finite_teleported"] == 1
    assert result["stiffness_teleported"] < result["stiffness"] / 3
