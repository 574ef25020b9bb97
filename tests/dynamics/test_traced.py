"""The traced run is `descend` without the driver: the same steps, jitted and vmapped."""

import jax
import jax.numpy as jnp
import numpy as np

import undertow as ut
from tests.kinds import params, problem
from undertow import _trees as trees
from undertow.dynamics import engine
from undertow.dynamics.traced import run_traced

NOISE = ut.Minibatch(problem(), 2)
KEY = jax.random.key(7)


def test_it_takes_the_steps_of_descend():
    """Seed 0 of `descend(key=KEY)` has the key fold_in(KEY, 0); 2,300 steps go over three blocks."""
    settings = {"step_size": 0.02, "steps": 2300, "weight_decay": 0.1}
    run = ut.descend(NOISE, params(), key=KEY, observe={"flat": trees.ravel}, progress=False, **settings)
    end = jax.jit(lambda key: run_traced(NOISE, params(), key=key, **settings))(jax.random.fold_in(KEY, 0))
    np.testing.assert_allclose(trees.ravel(end.params), run.observed["flat"][-1], rtol=1e-4, atol=1e-5)
    assert not end.diverged
    assert end.maximum == {}


def test_the_maximum_is_that_over_all_steps():
    """In blocks of 1,000 steps the randomness is that of `descend`; the start does not count."""
    largest = lambda p: jnp.max(jnp.abs(trees.ravel(p)))
    run = ut.descend(NOISE, params(), step_size=0.1, steps=70, key=KEY, observe={"top": largest}, every=1)
    end = run_traced(NOISE, params(), step_size=0.1, steps=70, key=jax.random.fold_in(KEY, 0), block=1000,
                     maximum={"top": largest})  # fmt: skip
    assert engine.block_length(NOISE, params()) == 1000
    np.testing.assert_allclose(end.maximum["top"], run.observed["top"][1:].max(), rtol=1e-5)


def test_the_number_of_steps_may_be_traced():
    go = jax.jit(lambda steps: run_traced(NOISE, params(), step_size=0.1, steps=steps, key=0, block=32).params)
    for steps in (5, 40):
        expected = run_traced(NOISE, params(), step_size=0.1, steps=steps, key=0, block=32).params
        np.testing.assert_allclose(trees.ravel(go(steps)), trees.ravel(expected), rtol=1e-5)


def test_divergence_is_a_flag_under_vmap():
    """w+ = (1 - eta) w: eta = 3 doubles |w| and overflows after 128 steps; the maximum is infinite then."""
    task = ut.Problem(lambda w, x: jnp.sum(x * w**2) / 2, jnp.array([1.0]))
    end = jax.vmap(
        lambda eta: run_traced(
            ut.Minibatch(task, 1),
            jnp.ones(2),
            step_size=eta,
            steps=200,
            key=0,
            maximum={"size": lambda w: jnp.sum(w**2)},
        )
    )(jnp.array([0.5, 3.0]))
    np.testing.assert_array_equal(end.diverged, [False, True])
    np.testing.assert_array_equal(end.params[1], jnp.ones(2))
    assert end.maximum["size"][0] <= 0.5 + 1e-6
    assert not np.isfinite(end.maximum["size"][1])
