"""Minibatches: their law, their covariance and fresh samples of a population."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import undertow as ut
from tests import dense
from tests.kinds import params, population, problem
from tests.mistakes import assert_explained
from undertow import _trees as trees


@pytest.mark.parametrize(("total", "size"), [(2, 1), (4, 3), (5, 2), (3, 3), (1, 1)])
def test_subsets_have_the_covariance_of_all_subsets(total, size, x64):
    """Against the mean over every subset there is."""
    values = np.arange(1.0, total + 1) ** 2
    task = ut.Problem(lambda w, x: w * x, jnp.asarray(values))
    means = np.array([values[list(kind)].mean() for kind in itertools.combinations(range(total), size)])
    noise = ut.Minibatch(task, size, replace=False)
    np.testing.assert_allclose(noise.covariance(jnp.array(0.0)).trace(), means.var(), rtol=1e-12, atol=1e-12)


POINT = params()


def test_the_gradient_of_a_batch_is_the_mean_of_its_samples(x64):
    task, point = problem(jnp.float64), params(dtype=jnp.float64)
    rows = dense.sample_gradients(task, point)
    batch = eqx.filter_jit(ut.Minibatch(task, 3).gradient)(point, jnp.array([5, 5, 2]))
    np.testing.assert_allclose(trees.ravel(batch), rows[[5, 5, 2]].mean(0), rtol=1e-10)
    one = eqx.filter_jit(ut.Minibatch(task, 1).gradient)(point, jnp.array(4))
    np.testing.assert_allclose(trees.ravel(one), rows[4], rtol=1e-10)


@pytest.mark.parametrize(("replace", "share"), [(True, 1 / 3), (False, (7 - 3) / (7 - 1) / 3)])
def test_the_covariance_is_that_of_the_sample_gradients(replace, share, x64):
    """Sigma/S, times (N - S)/(N - 1) without replacement, with Sigma from NumPy."""
    task, point = problem(jnp.float64), params(dtype=jnp.float64)
    one = np.cov(dense.sample_gradients(task, point).T, bias=True)
    sigma = ut.Minibatch(task, 3, replace=replace).covariance(point)
    np.testing.assert_allclose(dense.matrix(sigma.mv, point), share * one, atol=1e-12)


def test_samples_are_drawn_and_weighed_by_the_weights_of_the_problem(x64):
    weights = np.arange(1.0, 8.0) / 28
    task, point = problem(jnp.float64).reweight(jnp.asarray(weights)), params(dtype=jnp.float64)
    expected = np.cov(dense.sample_gradients(task, point).T, aweights=weights, bias=True) / 2
    noise = ut.Minibatch(task, 2)
    np.testing.assert_allclose(dense.matrix(noise.covariance(point).mv, point), expected, atol=1e-12)
    drawn = np.asarray(noise.randomness(jax.random.key(0), 10_000)).ravel()
    assert chisquare(np.bincount(drawn, minlength=7), 20_000 * weights).pvalue > 1e-5


def test_a_batch_of_all_samples_without_replacement_has_no_noise():
    noise = ut.Minibatch(problem(), 7, replace=False)
    drawn = trees.ravel(eqx.filter_jit(noise.draw)(jax.random.key(0), POINT))
    np.testing.assert_allclose(drawn, trees.ravel(problem().gradient(POINT)), rtol=1e-5, atol=1e-6)
    assert float(noise.covariance(POINT).trace()) == 0


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_population_is_sampled_anew_for_every_step(batch_size):
    noise = ut.Minibatch(population(), batch_size)
    inputs, targets = noise.randomness(jax.random.key(0), 5)
    batch = () if batch_size == 1 else (batch_size,)
    assert inputs.shape == (5, *batch, 3)
    assert targets.shape == (5, *batch)
    assert np.unique(inputs).size == inputs.size
    rows = [np.asarray(x) for x in (inputs[2].reshape(-1, 3), targets[2].reshape(-1))]
    expected = dense.sample_gradients(ut.Problem(population().sample_loss, tuple(rows)), POINT).mean(0)
    np.testing.assert_allclose(trees.ravel(noise.gradient(POINT, (inputs[2], targets[2]))), expected, rtol=1e-5)


def test_the_covariance_of_a_population_divides_by_one_less(x64):
    """Per-sample gradients x of the loss w.x: NumPy's covariance of the reference draws, over the batch size."""
    law = ut.Population(lambda w, x: w @ x, lambda key: jax.random.normal(key, (2,)))
    sigma = ut.Minibatch(law, 4).covariance(jnp.ones(2), key=3, samples=6)
    expected = np.cov(np.asarray(law.sample(jax.random.key(3), 6).data).T) / 4
    np.testing.assert_allclose(dense.matrix(sigma.mv, jnp.ones(2)), expected, rtol=1e-10)


MISTAKES = {
    "the mean over a population": (
        lambda: ut.Minibatch(population(), 2).mean(POINT),
        r"`Minibatch.mean`.*population.estimate_gradient",
    ),
    "subsets of weighted samples": (
        lambda: ut.Minibatch(problem().reweight(jnp.full(7, 1 / 7)), 2, replace=False),
        "the samples are weighted; use replace=True",
    ),
    "no samples at all": (
        lambda: ut.Minibatch(jnp.sum, 2),
        "`problem` is a function; give a Problem or a Regression, which have samples",
    ),
    "a batch larger than the data": (
        lambda: ut.Minibatch(problem(), 64, replace=False),
        r"`Minibatch\(batch_size=64\)`: the problem has 7 samples; use batch_size <= 7 or replace=True",
    ),
    "a batch of none": (
        lambda: ut.Minibatch(problem(), 0),
        r"`Minibatch\(batch_size=0\)`: `batch_size` must be at least 1",
    ),
    "half a batch": (lambda: ut.Minibatch(problem(), 0.5), "whole number"),
    "the old name of the batch size": (lambda: ut.Minibatch(problem(), size=2), r"Minibatch\(batch_size=\.\.\.\)"),
    "the old attribute of the batch size": (lambda: ut.Minibatch(problem(), 2).size, "called `batch_size` now"),
    "subsets of a population": (lambda: ut.Minibatch(population(), 2, replace=False), "without replacement"),
    "one sample for its covariance": (
        lambda: ut.Minibatch(population(), 1).covariance(POINT, samples=1),
        "`samples` must be at least 2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
