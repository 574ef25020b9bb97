"""Relaxation times, sharpness and largest stable steps against closed forms and simulations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.symmetry import nets
from undertow.symmetry.forecast import forecast, largest_curvature, relaxation_times, times_of_sums, trace_of_hessian


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


def test_curvatures_against_the_dense_hessian(x64):
    problem = ut.Problem(nets.relu_net, double(nets.data()))
    params = double(nets.relu_params())
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    dense = jax.hessian(lambda x: problem.loss(unravel(x)))(flat)
    estimate = trace_of_hessian(problem, params, jax.random.key(0), probes=200)
    assert abs(estimate.value - jnp.trace(dense)) < 5 * estimate.standard_error
    np.testing.assert_allclose(
        largest_curvature(problem, params, jax.random.key(0)), jnp.linalg.eigvalsh(dense)[-1], rtol=1e-6
    )


def test_lanczos_on_a_hessian_of_rank_one():
    problem = ut.Problem(lambda p, s: jnp.sum(p) ** 2, jnp.ones(3))
    np.testing.assert_allclose(largest_curvature(problem, jnp.ones(10), jax.random.key(0)), 20.0, rtol=1e-4)


def test_the_relaxation_time_of_isotropic_factors_equals_the_closed_form(x64):
    """tau = S/(4 eta^2 lambda) steps where Gamma_U = Gamma_W = lambda I."""
    x = jnp.concatenate([jnp.eye(2), -jnp.eye(2)]) * jnp.sqrt(2.0)
    x = jnp.concatenate([x, x])
    e = jnp.concatenate([jnp.ones((4, 2)), jnp.ones((4, 2)) * jnp.array([[1.0, -1.0]])])
    params = {"U": jnp.eye(2), "W": jnp.eye(2)}
    problem = ut.Problem(nets.linear_net, (x, x + e))
    noise, eta = ut.Minibatch(problem, 4), 0.01
    rate = float(jnp.mean(jnp.sum(e**2, 1)))  # |r|^2 = 2 and E xx' = I/2 * 2: Gamma = 2 I; likewise Gamma_U
    expected = 4 / (4 * eta**2 * rate)
    times = relaxation_times(noise, params, nets.FACTORS, step_size=eta)
    np.testing.assert_allclose(times, np.full(2, expected), rtol=1e-6)


KINDS = {
    "neurons": (nets.relu_net, nets.relu_params(3, 3), nets.RELU_LAYERS[0]),
    "one rescaling": (
        nets.linear_net, nets.weights(U=(2, 3), W=(3, 2)), ut.Rescaling(lambda p: p["U"], lambda p: p["W"]),
    ),
    "scaling": (nets.normalised, nets.weights(u=(2, 3), w=(3, 2)), nets.SCALE),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_relaxation_times_are_the_slope_of_the_flow(x64, kind):
    """Near the equilibrium a charge relaxes at the rate -d(dC/dt)/dC, so tau = -1/(eta d rate/dC) steps."""
    loss, params, symmetry = KINDS[kind]
    noise, eta, decay = ut.Minibatch(ut.Problem(loss, double(nets.data())), 4), 0.05, 0.6
    end = ut.equilibrium(noise, double(params), symmetry, step_size=eta, weight_decay=decay).params
    at = lambda amount: ut.noether_flow(noise, symmetry.orbit(end, amount), symmetry, step_size=eta, weight_decay=decay)
    up, down = at(1e-4), at(-1e-4)
    slope = (up.rate - down.rate) / (up.charge - down.charge)
    times = relaxation_times(noise, end, symmetry, step_size=eta, weight_decay=decay)
    np.testing.assert_allclose(times, np.ravel(-1 / (eta * slope)), rtol=1e-6)


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


@pytest.mark.slow  # a claim measures the same quantity
def test_charges_relax_with_the_predicted_time():
    """The charge of a product of two numbers falls by a factor e in one relaxation time, on average over runs."""
    y = jnp.array([1.0, -1.0]) * 0.5
    problem = ut.Problem(lambda p, s: (p["u"] * p["w"] - 1 - s) ** 2, y)
    symmetry = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    noise, eta = ut.Minibatch(problem, 1), 0.02
    params = {"u": jnp.array(1.2), "w": jnp.array(1 / 1.2)}
    prediction = forecast(noise, params, symmetry, step_size=eta)
    steps = round(prediction.relaxation[0])
    run = ut.descend(
        noise, params, step_size=eta, steps=steps, key=0, seeds=256, lane_width=256, progress=False,
        observe={"charge": symmetry.charge},
    )  # fmt: skip
    remaining = run.observed["charge"][:, -1] / float(symmetry.charge(params))
    # 0.03: the rate at the start differs from the rate at the equilibrium
    assert abs(remaining.mean() - np.exp(-1)) < 5 * remaining.std() / 16 + 0.03


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


def test_weight_decay_alone_relaxes_a_neuron_without_noise():
    """C' = -2 lambda C per unit time: 1/(2 eta lambda) steps; without decay the neuron has no relaxation time."""
    noise, weight = np.array([4.0, 0.0, 0.0]), np.array([2.0, 1.0, 0.0])
    assert times_of_sums(noise, weight, 0.1, 0.0) == pytest.approx([50.0])
    assert times_of_sums(noise, weight, 0.1, 1.0) == pytest.approx([1 / (0.1 * (2 + 0.1 * 2)), 5.0])


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_relaxation_times_do_not_depend_on_the_unit_of_noise_and_weights(unit):
    """1/(eta^2 s/w): a ratio of noise to weight of 1/4 at eta = 0.1 gives 400 steps."""
    np.testing.assert_allclose(times_of_sums(unit * np.array([0.5]), unit * np.array([2.0]), 0.1, 0.0), [400.0])
    np.testing.assert_allclose(
        times_of_sums(unit * np.eye(2)[None] / 2, unit * np.eye(2)[None] * 2, 0.1, 0.0), [400.0] * 2
    )


def test_directions_without_weight_have_no_relaxation_time():
    """Noise diag(4, 1) against weights diag(2, 0) gives 1/(0.1^2 4/2) steps for the first direction."""
    assert times_of_sums(np.diag([4.0, 1.0])[None], np.diag([2.0, 0.0])[None], 0.1, 0.0) == pytest.approx([50.0])
