"""Sweeps over commuting families: balance, convexity of the cost, and generators that are held."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.symmetry.commuting import Limits, members, relative, sweep

CHAIN = (ut.Rescaling(lambda p: p["b"], lambda p: p["a"]), ut.Rescaling(lambda p: p["c"], lambda p: p["b"]))


def chain():
    """Return three factors with two rescalings that share the middle one, and the noise of every entry."""
    params = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([0.5, 0.3]), "c": jnp.array([3.0])}
    noise = {"a": jnp.array([0.1, 0.4]), "b": jnp.array([2.0, 0.2]), "c": jnp.array([0.7])}
    return params, noise


def cost(amounts, params, noise, k):
    """Return the sum of noise exp(-2 A d) + k |params exp(A d)|^2, whose minimum is the equilibrium."""
    logs = {"a": -amounts[0], "b": amounts[0] - amounts[1], "c": amounts[1]}
    terms = [jnp.sum(noise[n] * jnp.exp(-2 * logs[n]) + k * params[n] ** 2 * jnp.exp(2 * logs[n])) for n in params]
    return sum(terms)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_end_of_the_sweeps_is_the_minimum_of_the_cost(x64, decay):
    """At the amounts of the sweeps the gradient of the convex cost vanishes."""
    params, noise = chain()
    eta = jnp.asarray(0.1)
    held = [np.zeros((), bool)] * 2
    swept = sweep(CHAIN, params, noise, held, eta, jnp.asarray(decay), 1e-13, 1000)
    assert float(swept.unbalanced) < 1e-12
    amounts = jnp.stack(swept.amounts)
    k = 2 * decay / 0.1
    slope = jax.grad(cost)(amounts, params, noise, k)
    np.testing.assert_allclose(slope, 0, atol=1e-10 * float(cost(amounts, params, noise, k)))
    for symmetry, amount in zip(CHAIN, swept.amounts, strict=True):
        params = symmetry.orbit(params, amount)
    for name in params:
        np.testing.assert_allclose(swept.params[name], params[name], rtol=1e-12)


def test_held_generators_stay_and_the_others_are_balanced(x64):
    params, noise = chain()
    held = [np.asarray(True), np.asarray(False)]
    swept = sweep(CHAIN, params, noise, held, jnp.asarray(0.1), jnp.asarray(0.0), 1e-13, 100)
    assert float(swept.amounts[0]) == 0
    np.testing.assert_array_equal(swept.params["a"], params["a"])
    # exp(4 amount) = s_c/s_b for the generator that moves
    np.testing.assert_allclose(swept.amounts[1], np.log(0.7 / 2.2) / 4, rtol=1e-12)
    assert float(swept.residuals[0]) > 0.01


def test_the_amount_is_infinite_for_one_sided_noise_and_nan_without_noise(x64):
    params, noise = chain()
    noise = noise | {"b": jnp.zeros(2), "c": jnp.zeros(1)}
    held = [np.zeros((), bool)] * 2
    swept = sweep(CHAIN, params, noise, held, jnp.asarray(0.1), jnp.asarray(0.0), 1e-10, 5)
    assert float(swept.amounts[0]) == -np.inf
    assert np.isnan(float(swept.amounts[1]))
    np.testing.assert_array_equal(swept.params["a"], params["a"])


def test_relative_differences_equal_the_formula():
    up, down = jnp.array([1.0, 3.0, 0.0]), jnp.array([1.0, 0.0, 0.0])
    np.testing.assert_array_equal(relative(up, down), [0.0, 1.0, 0.0])


def test_members_of_directions_are_held():
    held = [np.array([True, False, False]), np.asarray(False)]
    directions = [[np.array([0.0, 2.0, 0.0]), np.asarray(-1.0)]]
    first, second = members(directions, held)
    np.testing.assert_array_equal(first, [True, True, False])
    assert bool(second)


@pytest.mark.parametrize(("residual", "missed"), [(1e-9, False), (1e-6, False), (1e-3, True), (np.nan, True)])
def test_a_residual_counts_as_missed_above_both_limits(residual, missed):
    assert Limits(tolerance=1e-8, rounding=1e-5, sweeps=1).missed_by(residual) == missed


def test_the_residual_of_a_held_generator_is_that_of_noise_and_decay(x64):
    """By hand: u = 2 with noise 0.3 against w = (1, 3) with noise 0.2 and 0.4, and k = 2 lambda/eta = 0.5."""
    params = {"u": jnp.array([2.0]), "w": jnp.array([1.0, 3.0])}
    noise = {"u": jnp.array([0.3]), "w": jnp.array([0.2, 0.4])}
    pair = (ut.Rescaling(lambda p: p["u"], lambda p: p["w"]),)
    swept = sweep(pair, params, noise, [np.asarray(True)], jnp.asarray(0.4), jnp.asarray(0.1), 1e-10, 1)
    up, down = 0.3 + 0.5 * 10.0, 0.6 + 0.5 * 4.0
    np.testing.assert_allclose(swept.residuals[0], (up - down) / (up + down), rtol=1e-12)
