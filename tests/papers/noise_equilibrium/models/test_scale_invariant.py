"""Scale-invariant networks: their invariances, and the norm of their start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.papers.noise_equilibrium.models.linear_nets import squared_norms
from undertow.papers.noise_equilibrium.models.scale_invariant import LinearData, NormalisedLoss, start

N = 4
DTYPE = jnp.float64


@pytest.mark.parametrize("net", ["A", "B"])
def test_the_loss_is_scale_invariant(x64, net):
    problem = LinearData.draw(jax.random.key(9), d=N, samples=20, dtype=DTYPE).problem(NormalisedLoss(net))
    params = start(jax.random.key(10), d=N, hidden=6, square=7.0, dtype=DTYPE)
    np.testing.assert_allclose(squared_norms(params).sum(), 7.0, rtol=1e-12)
    pick = {"both": lambda p: (p["u"], p["w"]), "u": lambda p: p["u"], "w": lambda p: p["w"]}
    for layer, holds in {"A": {"both": True, "u": False}, "B": {"u": True, "w": True}}[net].items():
        assert ut.Scaling(pick[layer]).check(problem, params, jax.random.key(11)).holds == holds


def test_an_unknown_network_raises():
    with pytest.raises(ValueError, match="choose 'A' or 'B'"):
        NormalisedLoss("C")
