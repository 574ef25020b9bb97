"""The covariance of sampled gradients against NumPy: weights, groups and standard errors."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import sem

import undertow as ut
from tests import dense
from tests.kinds import GROUPS, params, problem
from undertow.covariance import SampleCovariance

AMOUNT = 0.4
WEIGHTS = np.arange(1.0, 8.0) / 28


@pytest.fixture(params=["one group", "three groups"])
def example(request, x64):
    """A covariance of weighted samples, its params and its dense matrix."""
    task, point = problem(jnp.float64).reweight(jnp.asarray(WEIGHTS)), params(dtype=jnp.float64)
    groups = None if request.param == "one group" else GROUPS
    labels = np.zeros(7, int) if groups is None else np.asarray(groups)
    rows, expected = dense.sample_gradients(task, point), 0.0
    for label in np.unique(labels):
        inside = labels == label
        expected = expected + WEIGHTS[inside].sum() * np.cov(rows[inside].T, aweights=WEIGHTS[inside], bias=True)
    return SampleCovariance(task, point, AMOUNT, groups, int(labels.max()) + 1), point, AMOUNT * expected


def test_every_method_is_that_of_the_dense_matrix(example):
    sigma, point, expected = example
    dense.assert_covariance(sigma, point, expected)


def test_standard_errors_of_traces_and_moments(x64):
    """Gradients x of the loss w.x: each sample has the value amount * form(x - mean), and scipy gives the error."""
    x = np.random.default_rng(0).normal(size=(9, 2)) ** 3
    sigma = SampleCovariance(ut.Problem(lambda w, s: w @ s, jnp.asarray(x)), jnp.ones(2), AMOUNT)
    centred = x - x.mean(0)
    error = AMOUNT * sem((centred**2).sum(1))

    @eqx.filter_jit
    def errors(sigma):
        product = sigma.moment_error(lambda v: {"product": v[0] * v[1]})["product"]
        return sigma.trace_error(), sigma.trace_error(lambda v: 3 * v), product

    expected = error, 3 * error, AMOUNT * sem(centred[:, 0] * centred[:, 1])
    np.testing.assert_allclose(errors(sigma), expected, rtol=1e-10)


@pytest.mark.parametrize("what", ["groups", "weights"])
def test_standard_errors_need_one_population_with_equal_weights(what):
    task = problem() if what == "groups" else problem().reweight(jnp.full(7, 1 / 7))
    groups = (GROUPS, 3) if what == "groups" else ()
    with pytest.raises(ValueError, match="`trace_error`: only for equally weighted samples of one population"):
        SampleCovariance(task, params(), AMOUNT, *groups).trace_error()


def test_one_sample_has_no_covariance(x64):
    sigma = SampleCovariance(ut.Problem(lambda w, s: w @ s, jnp.ones((1, 2))), jnp.ones(2), 1.0)
    dense.assert_covariance(sigma, jnp.ones(2), np.zeros((2, 2)), atol=0)
