"""The Noether flow against explicit covariances, and against many draws of one step."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import undertow as ut
from tests.symmetry import nets

ETA, DECAY = 0.02, 0.8


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


@pytest.mark.parametrize("replace", [True, False])
def test_the_expected_step_is_exact(replace, x64):
    """The mean change of the charge over all batches of two, by enumeration."""
    x, y = double(nets.data(samples=6))
    problem = ut.Problem(nets.relu_net, (x, y))
    params = double(nets.relu_params(3, 3))
    layer = nets.RELU_LAYERS[0]
    noise = ut.Minibatch(problem, 2, replace=replace)
    flow = ut.noether_flow(noise, params, layer, step_size=ETA, weight_decay=DECAY)
    pairs = [(i, j) for i in range(6) for j in range(6) if replace or i != j]

    def change(pair):
        gradient = problem.batch_gradient(params, pair)
        after = jax.tree.map(lambda p, g: (1 - ETA * DECAY) * p - ETA * g, params, gradient)
        return layer.charge(after) - layer.charge(params)

    mean = np.mean([change(jnp.array(pair)) for pair in pairs], axis=0)
    np.testing.assert_allclose(flow.per_step, mean, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(flow.breaking, 0, atol=1e-12)


def test_the_expected_step_is_exact_where_the_symmetry_is_broken(x64):
    """The breaking term of one step is -eta (1 - eta lambda) g'A params: by enumeration, with a large decay."""
    x, y = double(nets.data(samples=4))
    problem = ut.Problem(lambda p, s: nets.square(p["o"] @ jnp.tanh(p["i"] @ s[0]), s[1]), (x, y))
    params = double(nets.weights(o=(2, 3), i=(3, 2)))
    neurons = ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True)
    noise, eta, decay = ut.Minibatch(problem, 1), 0.1, 3.0
    flow = ut.noether_flow(noise, params, neurons, step_size=eta, weight_decay=decay, approximate=True)

    def charge_after(index):
        gradient = problem.batch_gradient(params, jnp.asarray(index))
        return neurons.charge(jax.tree.map(lambda p, g: (1 - eta * decay) * p - eta * g, params, gradient))

    mean = np.mean([charge_after(k) for k in range(4)], axis=0) - neurons.charge(params)
    np.testing.assert_allclose(flow.per_step, mean, rtol=1e-10, atol=1e-14)
    assert np.abs(eta * flow.breaking).min() > 1e-3  # the breaking is detected
    square = lambda g: 2 * neurons.charge(g)  # g'A g
    gradient = problem.gradient(params)
    np.testing.assert_allclose(flow.gradient, square(gradient), rtol=1e-10)
    second = np.mean([square(problem.batch_gradient(params, jnp.asarray(k))) for k in range(4)], axis=0)
    np.testing.assert_allclose(flow.noise, second - square(gradient), rtol=1e-9)
    shifted = jax.tree.map(lambda p, g: p + g, params, gradient)
    along = (square(shifted) - square(params) - square(gradient)) / 2  # g'A params, by polarisation
    np.testing.assert_allclose(flow.breaking, -along, rtol=1e-8)
    small = ut.noether_flow(noise, params, neurons, step_size=1e-7, weight_decay=decay, approximate=True)
    np.testing.assert_allclose(small.per_step / 1e-7, small.rate, rtol=1e-5)


def test_continuous_time_is_the_step_without_the_mean_gradient(x64):
    problem = ut.Problem(nets.linear_net, double(nets.data()))
    params = double(nets.weights(U=(2, 3), W=(3, 2)))
    flow = ut.noether_flow(ut.Minibatch(problem, 4), params, nets.FACTORS, step_size=1e-6, weight_decay=DECAY)
    rest = flow.per_step / 1e-6 - 1e-6 / 2 * flow.gradient
    np.testing.assert_allclose(rest, flow.rate, rtol=1e-5)
    fast = ut.noether_flow(ut.Minibatch(problem, 4), params, nets.FACTORS, step_size=1e-2, momentum=0.9)
    slow = ut.noether_flow(ut.Minibatch(problem, 4), params, nets.FACTORS, step_size=1e-1)
    np.testing.assert_allclose(fast.rate, slow.rate, rtol=1e-10)
    assert fast.per_step is None


class Drawer(eqx.Module):
    """Fresh data of a distribution given by a seed, with labels far from zero so that the mean gradient is large."""

    seed: jax.Array

    def __call__(self, key):
        keys = jax.random.split(jax.random.fold_in(key, self.seed))
        return jax.random.normal(keys[0], (2,)), 8 + jax.random.normal(keys[1], (2,))


@pytest.mark.parametrize("route", ["taps", "per-sample gradients"])
def test_the_standard_error_of_a_population_is_the_spread_of_its_estimates(route, x64):
    """The ratio of variances over 100 draws of 4,096 samples is within its 99.99 % interval."""
    params = double(nets.relu_params(3, 3))
    symmetry = nets.RELU_LAYERS[0]
    if route != "taps":
        signs = {"b1": 0.0, "b2": -1.0, "w1": 0.0, "w2": -1.0, "w3": 1.0}
        symmetry = ut.Exponential(jax.tree.map(lambda p, sign: jnp.full_like(p, sign), params, signs))
    flows = []
    for seed in range(100):
        population = ut.Population(nets.relu_net, Drawer(jnp.asarray(seed)))
        noise = ut.Minibatch(population, 2)
        flows.append(ut.noether_flow(noise, params, symmetry, step_size=ETA, momentum=0.5, approximate=True))
    assert ("taps" in flows[0].route) == (route == "taps")
    rates = np.stack([flow.rate for flow in flows])
    reported = np.mean([flow.standard_error**2 for flow in flows], axis=0)
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], 99) / 99
    ratio = rates.var(axis=0, ddof=1) / reported
    assert (ratio > low).all(), ratio
    assert (ratio < high).all(), ratio


def test_a_finite_data_set_has_no_standard_error(x64):
    noise = ut.Minibatch(ut.Problem(nets.relu_net, double(nets.data())), 2)
    flow = ut.noether_flow(noise, double(nets.relu_params(3, 3)), nets.RELU_LAYERS[0], step_size=ETA)
    assert np.asarray(flow.standard_error).max() == 0


def test_the_method_is_reported(x64):
    problem = ut.Problem(nets.relu_net, double(nets.data()))
    flow = ut.noether_flow(ut.Minibatch(problem, 4), double(nets.relu_params()), nets.RELU_LAYERS[0], step_size=ETA)
    assert "w1 by taps" in flow.route
    assert "b1 by per-sample gradients" in flow.route
    other = ut.noether_flow(ut.Isotropic(problem), double(nets.relu_params()), nets.RELU_LAYERS[0], step_size=ETA)
    assert other.route == "covariance"


def test_a_broken_symmetry_raises_an_error_with_its_size():
    params = nets.weights(o=(2, 3), i=(3, 2))
    problem = ut.Problem(lambda p, s: nets.square(p["o"] @ jnp.tanh(p["i"] @ s[0]), s[1]), nets.data())
    neurons = ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True)
    with pytest.raises(ValueError, match=r"does not have the symmetry.*approximate=True"):
        ut.noether_flow(ut.Minibatch(problem, 2), params, neurons, step_size=ETA)
    flow = ut.noether_flow(ut.Minibatch(problem, 2), params, neurons, step_size=ETA, approximate=True)
    assert np.abs(flow.breaking).max() > 1e-3


BAD = {
    "negative weight decay": ({"weight_decay": -1.0}, "`weight_decay` must be a finite number, at least 0"),
    "a step size that is not a number": ({"step_size": "x"}, "`step_size` must be a number"),
    "momentum of one": ({"momentum": 1.0}, "below 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_raises(case, as_a_user):
    more, sentence = BAD[case]
    problem = ut.Problem(nets.linear_net, nets.data())
    arguments = {"step_size": ETA} | more
    with pytest.raises((ValueError, TypeError), match=sentence):
        ut.noether_flow(ut.Minibatch(problem, 2), nets.weights(U=(2, 3), W=(3, 2)), nets.FACTORS, **arguments)


def test_the_old_order_of_arguments_raises_an_error_with_the_new_one(as_a_user):
    noise, params = ut.Minibatch(ut.Problem(nets.linear_net, nets.data()), 2), nets.weights(U=(2, 3), W=(3, 2))
    with pytest.raises(TypeError, match=r"the order is `noether_flow\(noise, params, symmetry, \.\.\.\)` now"):
        ut.noether_flow(noise, nets.FACTORS, params, step_size=ETA)


def _flow():
    product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    params = {"u": jnp.array(2.0), "w": jnp.array(0.5)}
    balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    return ut.noether_flow(ut.Minibatch(product, 1), params, balance, step_size=0.1)


def test_a_flow_prints_and_plots_every_generator():
    charge, rate, error = jnp.arange(15.0), -jnp.arange(15.0), jnp.full(15, 0.5)
    flow = replace(_flow(), charge=charge, rate=rate, noise=2 * rate, breaking=0 * rate, standard_error=error)
    lines = str(flow).splitlines()
    assert lines[0].startswith("Noether flow, noise by ")
    assert lines[4].split() == ["generator[2]", "2", "-2", "0.5", "-4", "0"]
    assert lines[-2] == "... and 3 more generators."
    assert lines[-1] == f"relaxation time, at most: {float(flow.relaxation_steps):.3g} steps"
    assert "generator[2]" in flow._repr_html_()
    axes = flow.plot(label="here")
    points = axes.get_lines()[0]
    np.testing.assert_array_equal(points.get_xdata(), charge)
    np.testing.assert_array_equal(points.get_ydata(), rate)
    ends = np.array([segment[:, 1] for segment in axes.collections[0].get_segments()])
    np.testing.assert_allclose(ends, np.stack([rate - 1, rate + 1], 1))


def test_a_flow_inside_jit_prints_its_structure():
    printed = []
    jax.jit(lambda flow: printed.append(str(flow)))(_flow())
    assert printed[0].startswith("Flow(")
