"""The alternation over symmetries that do not commute: stopping criteria and residuals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry import alternating
from undertow.symmetry.commuting import Limits
from undertow.symmetry.powers import Powers

ETA = 0.02


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


def two_products():
    """Return two rescalings of a linear pair, with its noise."""
    noise = ut.Minibatch(ut.Problem(nets.linear_net, double(nets.data())), 4)
    params = double(nets.weights(U=(2, 2), W=(2, 2), unused=(2,)))
    return noise, params, ut.Rescaling(lambda p: p["U"], lambda p: p["W"])


@pytest.mark.parametrize(("move", "sweeps"), [(1.0, 6), (-1.0, 6), (20.0, 2), (-20.0, 2), (np.inf, 6)])
def test_the_alternation_ends_in_balance_or_at_infinity(x64, monkeypatch, move, sweeps):
    """A flow that falls tenfold per sweep is below 1e-5 after six sweeps; an amount over 30 counts as infinite."""
    noise, params, symmetry = two_products()
    calls = []
    monkeypatch.setattr(alternating, "_balance", lambda s, n, p, *_: (p, np.asarray(move), 0, np.asarray(True)))
    monkeypatch.setattr(
        alternating, "_residual", lambda *_: calls.append(0) or (0.0, 0.5 * 10.0 ** (-(len(calls) // 2)))
    )
    limits = Limits(tolerance=1e-5, rounding=1e-12, sweeps=100)
    held = [np.zeros((), bool)] * 2
    ended = alternating._alternate(noise, (symmetry,) * 2, params, held, jnp.array(ETA), jnp.array(0.0), limits)
    assert ended.sweeps == sweeps
    np.testing.assert_array_equal(ended.amounts, [move * sweeps] * 2)


def test_the_flow_along_a_direction_without_noise_is_zero(x64):
    noise, params, _ = two_products()
    swap = ut.Exponential(lambda v: {"U": 0 * v["U"], "W": 0 * v["W"], "unused": v["unused"][::-1]})
    residual = alternating._residual(swap, noise, params, np.asarray(False), jnp.array(ETA), jnp.array(0.0))
    assert residual == (0.0, 0.0)


def test_a_relative_flow_is_at_most_one(x64, monkeypatch):
    """Rounding may make the noise power of either side slightly negative."""
    noise, params, symmetry = two_products()
    for sides in ((-1e-18, 2e-18), (2e-18, -1e-18)):
        rounded = Powers(*map(jnp.asarray, sides), jnp.zeros(()))
        sides_now = rounded, symmetry.pair(params, params)
        monkeypatch.setattr(alternating, "_power_and_size", lambda *_, now=sides_now: now)
        residual = alternating._residual(symmetry, noise, params, np.asarray(True), jnp.array(ETA), jnp.array(0.0))
        assert residual == (1.0, 1.0)


def test_the_relative_flow_of_a_rotation_is_its_largest_entry_over_the_largest_entries_of_both_sides(x64, monkeypatch):
    """Sides far below one: the flow is relative, so their size does not count."""
    up, down = np.array([[0.03, 0.01], [0.01, 0.02]]), np.array([[0.01, 0.0], [0.0, 0.005]])
    monkeypatch.setattr(alternating, "_sides", lambda *_: (up, down))
    noise, params, _ = two_products()
    rotation = ut.DoubleRotation(lambda p: p["U"], lambda p: p["W"])
    inside = np.diag([0.0, 1.0])
    residual = alternating._residual(rotation, noise, params, inside, jnp.array(ETA), jnp.array(0.0))
    np.testing.assert_allclose(residual, [0.02 / 0.04, 0.015 / 0.04])
    monkeypatch.setattr(alternating, "_sides", lambda *_: (0 * up, 0 * down))
    assert alternating._residual(rotation, noise, params, inside, jnp.array(ETA), jnp.array(0.0)) == (0.0, 0.0)


def test_runaways_are_the_generators_with_large_amounts():
    held = [np.zeros(3, bool), np.zeros((), bool)]
    assert alternating._runaways([np.array([29.0, -3.0, np.inf]), np.array(1.0)], held) is None
    first, second = alternating._runaways([np.array([31.0, -3.5, 2.0]), np.array(1.0)], held)
    np.testing.assert_array_equal(first, [31.0, -3.5, 0.0])  # a tenth of the limit is enough to run with the others
    assert float(second) == 0.0
    rotation = alternating._runaways([np.diag([31.0, 0.0])], held[1:])  # held as a whole
    np.testing.assert_array_equal(rotation, [1.0])


def test_the_amount_at_the_equilibrium_is_zero(x64):
    """The same noise along the eigenvectors of 1 and of -1: the flow is exactly zero."""
    noise = ut.Isotropic(ut.Problem(lambda p, x: x * jnp.sum(p), jnp.ones(1)), 1.0)
    params, symmetry = jnp.array([2.0, 3.0]), ut.Exponential(jnp.array([1.0, -1.0]))
    numbers = (jnp.array(ETA), jnp.array(0.0), 1e-10)
    moved, amount, *_ = alternating._balance(symmetry, noise, params, np.asarray(False), *numbers)
    assert float(amount) == 0
    np.testing.assert_array_equal(moved, params)
