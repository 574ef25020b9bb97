"""`descend`: steps by hand and by optax, schedules, starts, and the steps at which a run is observed."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import undertow as ut
from tests.dynamics.runs import FLAT, KEY, NOISE, descend, plain_loop
from tests.kinds import params, problem
from undertow import _trees as trees
from undertow.noise.additive import noiseless


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 3.415), (0.9, 3.145)])
def test_two_steps_with_weight_decay_by_hand(momentum, expected):
    """Gradient 1, eta = 0.1, lambda = 0.5, from 4: v = 1 + 0.5 * 4 = 3, so 4 - 0.3 = 3.7.

    Then g + lambda theta = 1 + 1.85 = 2.85: 3.7 - 0.285 without momentum; with beta = 0.9, v = 2.7 + 2.85 = 5.55.
    """
    steady = noiseless(ut.Problem(lambda w, _: w, jnp.zeros(1)))
    run = ut.descend(steady, jnp.array(4.0), step_size=0.1, steps=2, key=0, momentum=momentum, weight_decay=0.5)
    np.testing.assert_allclose(run.params, 3.7 - 0.1 * (momentum * 3 + 2.85), rtol=1e-6)
    np.testing.assert_allclose(run.params, expected, rtol=1e-6)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_weight_decay_is_that_of_optax(momentum):
    """`optax.add_decayed_weights` before `optax.sgd`, on the full gradient."""
    eta, decay, task = 0.05, 0.3, problem()
    run = ut.descend(noiseless(task), params(), step_size=eta, steps=20, key=0, momentum=momentum or 0.0,
                     weight_decay=decay, observe=FLAT)  # fmt: skip
    optimiser = optax.chain(optax.add_decayed_weights(decay), optax.sgd(eta, momentum))
    now = params()
    state = optimiser.init(now)
    for _ in range(20):
        updates, state = optimiser.update(task.gradient(now), state, now)
        now = optax.apply_updates(now, updates)
    np.testing.assert_allclose(run.observed["flat"][-1], trees.ravel(now), rtol=1e-5, atol=1e-6)


def test_a_schedule_counts_for_the_steps_that_run():
    schedule = lambda step: 0.105 - 0.01 * step  # negative from step 11 on
    run = ut.descend(NOISE, params(), step_size=schedule, steps=6, key=KEY, observe=FLAT)
    run = run.resume(steps=5)
    np.testing.assert_allclose(
        run.observed["flat"][-1], plain_loop(NOISE, params(), 11, schedule, block=1000)[-1], rtol=1e-4
    )
    np.testing.assert_allclose(run.time[-1], 0.605, rtol=1e-6)
    with pytest.raises(ValueError, match=r"the schedule gives -0.00.* at step 11"):
        run.resume(steps=1)
    with pytest.raises(ValueError, match="at step 11"):
        ut.descend(NOISE, params(), step_size=schedule, steps=12, key=KEY)


def test_a_single_run_is_seed_zero(reference):
    run = descend(2500, every=500, seeds=None)
    assert run.observed["flat"].shape == (6, 8)
    assert run.diverged.shape == ()
    np.testing.assert_allclose(run.observed["flat"], reference.observed["flat"][0, ::500], rtol=1e-3, atol=1e-4)


def test_without_every_a_run_is_observed_at_its_ends(reference):
    run = descend(1200).resume(steps=1300)
    np.testing.assert_array_equal(run.step, [0, 1200, 2500])
    np.testing.assert_array_equal(run.observed["flat"], reference.observed["flat"][:, [0, 1200, 2500]])


def test_one_start_per_seed():
    run = ut.descend(
        NOISE,
        lambda key: trees.standard_normal(key, params()),
        step_size=0.01,
        steps=5,
        key=KEY,
        observe=FLAT,
        seeds=20,
    )
    starts = run.observed["flat"][:, 0]
    assert np.unique(starts[:, 0]).size == 20
    again = ut.descend(
        NOISE, lambda key: trees.standard_normal(key, params()), step_size=0.3, steps=1, key=KEY, observe=FLAT, seeds=2
    )
    np.testing.assert_array_equal(again.observed["flat"][:, 0], starts[:2])
