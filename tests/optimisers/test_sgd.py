"""SGD with momentum against optax (and against PyTorch in tests/torch), its metric and its regime."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import undertow as ut
from tests.optimisers.sequences import ETA, by_optax, moved


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True), (0.5, True)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_thousand_steps_as_in_optax(momentum, nesterov, decay, x64):
    ours, velocity = moved(ut.SGD(momentum, nesterov, decay))
    theirs = by_optax(
        optax.chain(optax.add_decayed_weights(decay), optax.sgd(ETA, momentum or None, nesterov=nesterov))
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    assert (velocity is None) == (momentum == 0)


def test_momentum_multiplies_the_step_size_of_a_constant_gradient(x64):
    """After many steps on the gradient 1, each step is eta/(1 - beta): the metric of SGD with momentum."""
    optimiser = ut.SGD(momentum=0.8).prepared()
    params, state = jnp.zeros(2), optimiser.init(jnp.zeros(2))
    for _ in range(200):
        before = params
        params, state = optimiser.update(params, state, jnp.ones(2), jnp.asarray(0.1))
    np.testing.assert_allclose(before - params, 0.1 * optimiser.metric(state, params), rtol=1e-12)
    np.testing.assert_allclose(optimiser.metric(state, params), 5.0, rtol=1e-12)
    assert optimiser.slow_state(state, jnp.ones(2), 0.1) is None
    np.testing.assert_allclose(ut.SGD(0.8, weight_decay=0.3).decay(jnp.full(2, 5.0)), 1.5)


def test_the_regime_compares_two_times():
    (ratio,) = ut.SGD(momentum=0.9).regime(0.001, 5.0).parameters
    np.testing.assert_allclose(ratio.value, 0.001 * 5 / 0.1)  # the curvature 5 in the metric is 0.5 without it
    assert ut.SGD().regime(0.001, 5.0).parameters == ()
