"""RMSProp, Adam and AdamW against optax (and against PyTorch in tests/torch), and what the theory reads from them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import undertow as ut
from tests.optimisers.sequences import ETA, GRADIENTS, START, by_optax, moved

PAIRS = {
    "Adam": (ut.Adam(), optax.adam(ETA)),
    "Adam with other numbers": (ut.Adam(0.5, 0.9, 1e-3), optax.adam(ETA, b1=0.5, b2=0.9, eps=1e-3)),
    "Adam without momentum": (ut.Adam(b1=0.0), optax.adam(ETA, b1=0.0)),
    "AdamW": (ut.AdamW(weight_decay=0.1), optax.adamw(ETA, weight_decay=0.1)),
    "RMSProp": (ut.RMSProp(0.95), optax.rmsprop(ETA, 0.95, eps_in_sqrt=False)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_thousand_steps_as_in_optax(name, x64):
    ours, theirs = PAIRS[name]
    np.testing.assert_allclose(moved(ours)[0], by_optax(theirs), rtol=1e-12, atol=1e-12)


def test_a_schedule_scales_steps_and_decay_as_in_optax(x64):
    schedule = optax.cosine_decay_schedule(ETA, 1000)
    ours, _ = moved(ut.AdamW(weight_decay=0.3), schedule(jnp.arange(1000)))
    np.testing.assert_allclose(ours, by_optax(optax.adamw(schedule, weight_decay=0.3)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimiser", [ut.Adam(bias_correction=False), ut.RMSProp()], ids=["Adam", "RMSProp"])
def test_without_bias_correction_by_hand(optimiser, x64):
    """Two steps in NumPy."""
    b1 = 0.0 if optimiser.b1 is None else optimiser.b1
    theta, m, v = START, 0.0, 0.0
    for g in GRADIENTS[:2]:
        m, v = b1 * m + (1 - b1) * g, optimiser.b2 * v + (1 - optimiser.b2) * g**2
        theta = theta - ETA * m / (np.sqrt(v) + optimiser.eps)
    prepared = optimiser.prepared()
    params, state = jnp.asarray(START), prepared.init(jnp.asarray(START))
    rates = prepared.rates(jnp.arange(2), jnp.asarray(ETA))
    for k in range(2):
        params, state = prepared.update(params, state, jnp.asarray(GRADIENTS[k]), rates)  # the same in every step
    np.testing.assert_allclose(params, theta, rtol=1e-13)
    np.testing.assert_allclose(state["v"], v, rtol=1e-13)
    assert ("m" in state) == (optimiser.b1 is not None)


def test_the_metric_is_the_step_per_gradient(x64):
    """With b1 = 0 and a v that does not change, theta moves by eta S g, and AdamW also by eta lambda theta."""
    optimiser = ut.AdamW(b1=0.0, b2=0.99, weight_decay=0.2, bias_correction=False).prepared()
    params, gradient = jnp.array([1.0, -2.0]), jnp.array([0.3, 4.0])
    state = {"m": jnp.zeros(2), "v": gradient**2}
    moved_, after = optimiser.update(params, state, gradient, optimiser.rates(jnp.asarray(0), jnp.asarray(0.1)))
    metric = optimiser.metric(state, params)
    np.testing.assert_allclose(params - moved_, 0.1 * (metric * gradient + optimiser.decay(metric) * params), rtol=1e-6)
    np.testing.assert_allclose(after["v"], state["v"], rtol=1e-12)


def test_the_slow_state_is_the_mean_change_of_v(x64):
    """E[v+ - v]/eta^2 over gradients of known second moment, for gradients +-3."""
    optimiser = ut.Adam(b2=0.9)
    v, eta = jnp.array([1.0]), 0.5
    change = np.mean([0.9 * 1 + 0.1 * g**2 - 1 for g in (-3.0, 3.0)]) / eta**2
    np.testing.assert_allclose(optimiser.slow_state({"v": v}, jnp.array([9.0]), eta)["v"], [change], rtol=1e-12)


def test_the_regime_is_the_ratio_of_relaxation_and_memory():
    (ratio,) = ut.Adam(b2=0.999).regime(0.01, 0.05).parameters
    np.testing.assert_allclose(ratio.value, 2.0)
    assert not ratio.valid


def test_single_precision_stays_single(x64):
    """Params of float32 are updated in float32, also where numbers are doubles."""
    optimiser = ut.AdamW().prepared()
    params = jnp.ones(3, jnp.float32)
    moved_, state = optimiser.update(
        params, optimiser.init(params), params, optimiser.rates(jnp.asarray(0), jnp.asarray(0.1))
    )
    assert {leaf.dtype for leaf in jax.tree.leaves((moved_, state))} == {jnp.dtype("float32")}


def test_the_average_with_bias_correction_changes_faster_at_the_start(x64):
    """v/(1 - b2^k) relaxes towards g^2 at the rate (1 - b2) times `start_up`, which tends to 1."""
    adam, params, squares = ut.Adam(b2=0.9), jnp.zeros(()), jnp.array([4.0, 1.0, 0.25, 9.0])
    state, corrected = adam.init(params), 0.0
    for step, square in enumerate(squares):
        state = adam.update(params, state, jnp.sqrt(square), adam.rates(jnp.asarray(step), jnp.asarray(0.1)))[1]
        corrected += 0.1 * adam.start_up(step) * (square - corrected)
        np.testing.assert_allclose(corrected, state["v"] / (1 - 0.9 ** (step + 1)), rtol=1e-12)
    assert adam.start_up(1e4) == 1
    assert adam.after_start_up().start_up(0) == ut.RMSProp().start_up(0) == ut.SGD().start_up(0) == 1
    decaying = ut.AdamW(b1=0.8, b2=0.7, eps=0.1, weight_decay=0.2)
    assert decaying.after_start_up() == ut.AdamW(0.8, 0.7, 0.1, 0.2, bias_correction=False)
