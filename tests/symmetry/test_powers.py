"""Noise along generators: Tr[Sigma A] against explicit covariances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests import kinds
from tests.symmetry import nets
from undertow.covariance import SampleCovariance
from undertow.symmetry.powers import _powers_of, entry_powers, form_error, powers


def double(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


ONE_OF_EACH_COVARIANCE = [
    "minibatch with replacement", "minibatch of a population", "label noise, subsets", "isotropic", "additive",
    "batches inside environments", "matrix sensing", "Gaussian twin",
]  # fmt: skip


@pytest.mark.parametrize("name", ONE_OF_EACH_COVARIANCE)
def test_powers_of_every_noise_against_its_dense_covariance(name, x64):
    """The powers are sums over the diagonal of the covariance, with signs."""
    noise, params = kinds.KINDS[name](jnp.float64), kinds.point(name, jnp.float64)
    half = jax.tree.map(lambda leaf: jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) % 2 == 0, 1.0, -1.0), params)
    symmetry = ut.Exponential(half)
    sigma = noise.covariance(params)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    from undertow import _trees as trees

    unit = trees.elements(params)
    dense = np.stack([np.asarray(trees.ravel(sigma.mv(unit(i)))) for i in range(size)])
    noise_powers = powers(noise, params, symmetry)
    expected = float((np.diag(dense) * np.asarray(trees.ravel(half))).sum())
    np.testing.assert_allclose(noise_powers.plus - noise_powers.minus, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(trees.ravel(entry_powers(noise, params)), np.diag(dense), rtol=1e-6, atol=1e-8)


def test_taps_subtract_the_means_of_groups(x64):
    """Batches inside environments: a structured symmetry against the dense covariance."""
    params = double(nets.weights(U=(2, 3), W=(3, 2)))
    problem = ut.Problem(nets.linear_net, double(nets.data(samples=12)))
    noise = ut.Environments(problem, np.arange(12) % 3, batch_size=2)
    noise_powers = powers(noise, params, ut.Rescaling(lambda p: p["U"], lambda p: p["W"]))
    diagonal = noise.covariance(params).moment(lambda g: jax.tree.map(jnp.square, g))
    np.testing.assert_allclose(noise_powers.plus, jnp.sum(diagonal["U"]), rtol=1e-10)
    np.testing.assert_allclose(noise_powers.minus, jnp.sum(diagonal["W"]), rtol=1e-10)


def test_the_standard_error_of_few_samples_equals_its_formula(x64):
    """eta/2 times the standard error of the mean of (g - gbar)'A(g - gbar), with the unbiased variance."""
    x, y = double(nets.data(samples=5))
    params = double(nets.relu_params(3, 3))
    problem = ut.Problem(nets.relu_net, (x, y))
    covariance = SampleCovariance(problem, params, 5 / 4)
    layer = nets.RELU_LAYERS[0]
    error = _powers_of(covariance, layer, params, sampled=True).error
    gradients = problem.sample_gradients(params)
    centred = jax.tree.map(lambda g: g - g.mean(0, keepdims=True), gradients)
    rows = [jax.tree.map(lambda c, i=i: c[i], centred) for i in range(5)]
    each = np.stack([np.subtract(*layer.pair(g, g)) for g in rows])
    np.testing.assert_allclose(error, 5 / 4 * each.std(axis=0, ddof=1) / np.sqrt(5), rtol=1e-10)


def test_a_symmetry_of_which_only_one_half_has_a_known_structure(x64):
    """The incoming weights are those of every other column, so that their noise is that of per-sample gradients."""
    params = double(nets.weights(U=(2, 3), W=(3, 4)))
    noise = ut.Minibatch(ut.Problem(nets.linear_net, double(nets.data(samples=12, inputs=4))), 2)
    noise_powers = powers(noise, params, ut.Rescaling(lambda p: p["U"], lambda p: p["W"][:, ::2]))
    diagonal = noise.covariance(params).moment(lambda g: jax.tree.map(jnp.square, g))
    np.testing.assert_allclose(noise_powers.plus, jnp.sum(diagonal["U"]), rtol=1e-10)
    np.testing.assert_allclose(noise_powers.minus, jnp.sum(diagonal["W"][:, ::2]), rtol=1e-10)


def test_the_standard_error_of_a_form_is_that_of_powers(x64):
    """With the form of a symmetry it is the error that `powers` has; zero for a finite data set."""
    population = ut.Population(lambda w, x: jnp.sum(w * x) ** 2, lambda key: jax.random.normal(key, (4,)))
    params, balance = jnp.arange(1.0, 5.0), ut.Rescaling(lambda p: p[:2], lambda p: p[2:])
    form = lambda g: jnp.subtract(*balance.pair(g, g))
    noise = ut.Minibatch(population, 2)
    np.testing.assert_allclose(form_error(noise, params, form), powers(noise, params, balance).error)
    fixed = ut.Minibatch(population.sample(0, 10), 2)
    assert form_error(fixed, params, form) == 0
    assert form_error(noise, params, form) > 0
