"""The Noether flow against explicit covariances, and against many draws of one step."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

import kinds
import undertow as ut
from undertow.symmetry.powers import entry_powers, powers

ETA, GAMMA = 0.02, 0.4


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


@pytest.mark.parametrize("replace", [True, False])
def test_the_expected_step_is_exact(replace, x64):
    """The mean of the charge's change over all batches of two, enumerated."""
    x, y = double(nets.data(samples=6))
    problem = ut.Problem(nets.relu_net, (x, y))
    params = double(nets.relu_params(3, 3))
    layer = nets.RELU_LAYERS[0]
    noise = ut.Minibatch(problem, 2, replace=replace)
    flow = ut.noether_flow(noise, layer, params, step_size=ETA, weight_decay=GAMMA)
    pairs = [(i, j) for i in range(6) for j in range(6) if replace or i != j]

    def change(pair):
        gradient = problem.batch_gradient(params, pair)
        after = jax.tree.map(lambda p, g: (1 - 2 * ETA * GAMMA) * p - ETA * g, params, gradient)
        return layer.charge(after) - layer.charge(params)

    mean = np.mean([change(jnp.array(pair)) for pair in pairs], axis=0)
    np.testing.assert_allclose(flow.per_step, mean, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(flow.breaking, 0, atol=1e-12)


def test_continuous_time_is_the_step_without_the_mean_gradient(x64):
    problem = ut.Problem(nets.linear_net, double(nets.data()))
    params = double(nets.weights(U=(2, 3), W=(3, 2)))
    flow = ut.noether_flow(ut.Minibatch(problem, 4), nets.FACTORS, params, step_size=1e-6, weight_decay=GAMMA)
    rest = flow.per_step / 1e-6 - 1e-6 / 2 * flow.gradient
    np.testing.assert_allclose(rest, flow.rate, rtol=1e-5)
    fast = ut.noether_flow(ut.Minibatch(problem, 4), nets.FACTORS, params, step_size=1e-2, momentum=0.9)
    slow = ut.noether_flow(ut.Minibatch(problem, 4), nets.FACTORS, params, step_size=1e-1)
    np.testing.assert_allclose(fast.rate, slow.rate, rtol=1e-10)
    assert fast.per_step is None


ONE_OF_EACH_COVARIANCE = [
    "minibatch with replacement", "minibatch of a population", "label noise, subsets", "isotropic", "additive",
    "batches inside environments", "matrix sensing", "Gaussian twin",
]  # fmt: skip


@pytest.mark.parametrize("name", ONE_OF_EACH_COVARIANCE)
def test_every_noise_has_its_powers(name, x64):
    """Of a noise's dense covariance: sums of the diagonal, with signs."""
    noise, params = kinds.KINDS[name](jnp.float64), kinds.point(name, jnp.float64)
    half = jax.tree.map(lambda leaf: jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) % 2 == 0, 1.0, -1.0), params)
    symmetry = ut.Exponential(half)
    sigma = noise.covariance(params)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    from undertow import trees

    unit = trees.elements(params)
    dense = np.stack([np.asarray(trees.ravel(sigma.mv(unit(i)))) for i in range(size)])
    found = powers(noise, symmetry, params)
    expected = float((np.diag(dense) * np.asarray(trees.ravel(half))).sum())
    np.testing.assert_allclose(found.plus - found.minus, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(trees.ravel(entry_powers(noise, params)), np.diag(dense), rtol=1e-6, atol=1e-8)


def test_a_population_carries_a_standard_error(x64):
    """Estimates from different draws spread as the standard error says."""

    def draw(key):
        keys = jax.random.split(key)
        return jax.random.normal(keys[0], (2,)), jax.random.normal(keys[1], (2,))

    params = double(nets.relu_params(3, 3))
    layer = nets.RELU_LAYERS[0]
    population = ut.Population(nets.relu_net, draw)
    flow = ut.noether_flow(ut.Minibatch(population, 2), layer, params, step_size=ETA)
    assert (np.asarray(flow.standard_error) > 0).all()
    large = population.sample(jax.random.key(5), 200_000)
    exact = ut.noether_flow(ut.Minibatch(large, 2), layer, params, step_size=ETA)
    z = (flow.rate - exact.rate) / flow.standard_error
    assert np.abs(z).max() < 5
    assert np.asarray(exact.standard_error).max() == 0


def test_the_route_is_told(x64):
    problem = ut.Problem(nets.relu_net, double(nets.data()))
    flow = ut.noether_flow(ut.Minibatch(problem, 4), nets.RELU_LAYERS[0], double(nets.relu_params()), step_size=ETA)
    assert "w1 by taps" in flow.route
    assert "b1 by per-sample gradients" in flow.route
    other = ut.noether_flow(ut.Isotropic(problem), nets.RELU_LAYERS[0], double(nets.relu_params()), step_size=ETA)
    assert other.route == "covariance"


def test_a_symmetry_the_loss_does_not_have_is_refused_with_its_size():
    params = nets.weights(o=(2, 3), i=(3, 2))
    problem = ut.Problem(lambda p, s: nets.square(p["o"] @ jnp.tanh(p["i"] @ s[0]), s[1]), nets.data())
    neurons = ut.Rescaling(lambda p: p["o"], lambda p: p["i"], neurons=True)
    with pytest.raises(ValueError, match=r"does not have the symmetry.*approximate=True"):
        ut.noether_flow(ut.Minibatch(problem, 2), neurons, params, step_size=ETA)
    flow = ut.noether_flow(ut.Minibatch(problem, 2), neurons, params, step_size=ETA, approximate=True)
    assert np.abs(flow.breaking).max() > 1e-3


BAD = {
    "negative weight decay": ({"weight_decay": -1.0}, "`weight_decay` must be a finite number, at least 0"),
    "a step size that is no number": ({"step_size": "x"}, "`step_size` must be a number"),
    "momentum of one": ({"momentum": 1.0}, "below 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_explained(what, as_a_user):
    more, sentence = BAD[what]
    problem = ut.Problem(nets.linear_net, nets.data())
    arguments = {"step_size": ETA} | more
    with pytest.raises((ValueError, TypeError), match=sentence):
        ut.noether_flow(ut.Minibatch(problem, 2), nets.FACTORS, nets.weights(U=(2, 3), W=(3, 2)), **arguments)
