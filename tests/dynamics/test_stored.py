"""Runs without their functions, and with them again. tests/execution/test_runs.py checks the bits of continued runs."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.dynamics.diffuse import GaussianNoise
from undertow.dynamics.stored import Functions, RunSettings, detached, functions_of, observed_like

NOISE = ut.Minibatch(ut.Problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.arange(4.0)), 2)
OBSERVE = {"w": lambda w: w, "sum": jnp.sum}


def continuation(**settings):
    return ut.descend(
        NOISE, jnp.zeros(3), steps=10, key=0, observe=OBSERVE, **{"step_size": 0.1, **settings}
    ).continuation


@pytest.mark.parametrize("settings", [{}, {"seeds": 3, "every": 2, "momentum": 0.5}, {"step_size": lambda t: 0.1}])
def test_settings_are_plain_values(settings):
    stored = detached(continuation(**settings), {}).settings
    assert RunSettings.from_json(json.loads(json.dumps(stored.to_json()))) == stored


def test_the_noise_of_an_sde_is_the_one_that_was_given():
    run = ut.diffuse(NOISE, jnp.zeros(3), step_size=0.1, time=1.0, key=0, substeps=5).continuation
    assert functions_of(run).noise is NOISE
    again = detached(run, {}).attach(functions_of(run))
    assert isinstance(again.spec.noise, GaussianNoise)
    assert again.spec.noise.inflation == run.spec.noise.inflation
    gaussian = ut.descend(GaussianNoise(NOISE, jnp.array(2.0)), jnp.zeros(3), step_size=0.1, steps=3, key=0)
    assert functions_of(gaussian.continuation).noise.inflation == 2.0


def test_an_observable_of_another_shape_is_refused():
    stored = detached(continuation(seeds=2), {})
    for other in (lambda w: w[:2], lambda w: {"a": w}):
        with pytest.raises(ValueError, match=r"the observable 'w' has the shape .*; give the function of the run"):
            stored.attach(Functions(NOISE, {**OBSERVE, "w": other}, {}, None))
    assert stored.attach(Functions(NOISE, OBSERVE, {}, None)).step == 10


def test_what_is_needed_to_continue_is_named():
    assert detached(continuation(), {}).needed() == ["noise", "observe"]
    schedule = detached(continuation(step_size=lambda t: 0.1), {})
    assert schedule.needed() == ["noise", "observe", "step_size"]
    with pytest.raises(TypeError, match="is a schedule"):
        schedule.attach(Functions(NOISE, OBSERVE, {}, None))


def test_a_schedule_is_recognised_by_its_sums():
    run = ut.descend(NOISE, jnp.zeros(3), step_size=lambda t: 0.1 / (1 + t), steps=10, key=0, every=5)
    stored = detached(run.continuation, {})
    stored.check_schedule(lambda t: 0.1 / (t + 1.0), run)
    with pytest.raises(ValueError, match=rf"the schedule sums to {0.1 * sum(1 / n for n in range(2, 12)):.6f}"):
        stored.check_schedule(lambda t: 0.1 / (2 + t), run)
    np.testing.assert_allclose(run.time[-1], 0.1 * sum(1 / n for n in range(1, 11)), rtol=1e-6)


def test_shapes_of_observables():
    shapes = observed_like(OBSERVE, {"m": lambda w: (w, w)}, jnp.zeros(3))
    assert [s.shape for s in (shapes["w"], shapes["sum"], *shapes["m"])] == [(3,), (), (3,), (3,)]
