"""Sharpness, largest stable steps and the slowest relaxation time against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry.forecast import forecast


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


def test_a_forecast_of_two_products_by_hand(x64):
    """For (uw - y)^2 with y = 0 or 2, noise over weights is 4 on the orbit, so the relaxation time is 1/(4 eta^2).

    The relaxation time of a second product, with labels twice as far apart, is a quarter: 1/(16 eta^2).
    """
    y = jnp.array([[0.0, 0.0], [2.0, 4.0]])
    problem = ut.Problem(lambda p, s: (p["u"] * p["w"] - s[0]) ** 2 + (p["a"] * p["b"] - s[1]) ** 2, y)
    params = {name: jnp.asarray(value) for name, value in {"u": 4.0, "w": 0.5, "a": 2.0, "b": 1.0}.items()}
    neurons = ut.Rescaling(lambda p: jnp.stack([p["u"], p["a"]]), lambda p: jnp.stack([p["w"], p["b"]]), neurons=True)
    gradient = problem.gradient(params)
    falling = float(problem.loss(params)) / sum(float(g) ** 2 for g in gradient.values())
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    border = 1 / (4 * falling)  # 1/(4 eta) is the time scale of the loss
    for eta, phase in ((0.95 * border, "slow"), (1.05 * border, "fast")):
        prediction = forecast(ut.Minibatch(problem, 1), params, neurons, step_size=eta)
        assert prediction.phase == phase
        np.testing.assert_allclose(prediction.relaxation, 1 / (4 * eta**2), rtol=1e-6)  # the slower of the two
        equilibrium = jax.flatten_util.ravel_pytree(prediction.equilibrium.params)[0]
        for point, bound in zip((flat, equilibrium), prediction.largest_step, strict=True):
            dense = jax.hessian(lambda x: problem.loss(unravel(x)))(point)
            np.testing.assert_allclose(bound, 2 / jnp.linalg.eigvalsh(dense)[-1], rtol=1e-5)


@pytest.mark.parametrize(("decay", "phase"), [(0.5, "fast"), (0.001, "slow")])
def test_the_phase_near_a_minimum_compares_times_of_a_small_gradient(x64, decay, phase):
    """The loss 0.01 (uw - 1)^2 falls in the time L/|grad L|^2 = 21; decay relaxes the charge in about 1/(2 decay)."""
    problem = ut.Problem(lambda p, y: 0.01 * (p["u"] * p["w"] - y) ** 2, jnp.array([0.9, 1.1]))
    params = {"u": jnp.asarray(1.0), "w": jnp.asarray(0.5)}
    balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    gradient = problem.gradient(params)
    falling = float(problem.loss(params)) / sum(float(g) ** 2 for g in gradient.values())
    prediction = forecast(ut.Minibatch(problem, 1), params, balance, step_size=0.01, weight_decay=decay)
    assert prediction.phase == phase
    assert (prediction.relaxation[0] * 0.01 < falling) == (phase == "fast")
    assert sum(float(g) ** 2 for g in gradient.values()) < 1e-3


def test_the_equilibrium_of_an_unbalanced_net_is_flatter():
    params = nets.weights(U=(3, 8), W=(8, 3))
    params["U"] = 5 * params["U"]
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (200, 3))
    problem = ut.Problem(nets.linear_net, (x, x + jax.random.normal(keys[1], (200, 3))))
    prediction = forecast(ut.Minibatch(problem, 8), params, nets.FACTORS, step_size=1e-3)
    assert prediction.sharpness[1].value < prediction.sharpness[0].value / 2
    assert prediction.largest_step[1] > 1.5 * prediction.largest_step[0]
    assert prediction.phase in ("fast", "slow")
