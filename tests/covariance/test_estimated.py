"""The covariance of draws: the sample covariance of NumPy, and the standard errors of its traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import dense
from undertow.covariance import EstimatedCovariance

LIKE = {"a": np.zeros((2, 2)), "b": np.zeros(())}


def stacked(rows: np.ndarray) -> dict:
    """Return rows of five numbers as draws like `LIKE`."""
    return {"a": jnp.asarray(rows[:, :4].reshape(-1, 2, 2)), "b": jnp.asarray(rows[:, 4])}


@pytest.mark.parametrize("samples", [2, 3, 40])
def test_every_method_is_that_of_the_sample_covariance(samples, x64):
    rows = np.random.default_rng(0).normal(size=(samples, 5)) + 3
    sigma = EstimatedCovariance.of(stacked(rows))
    assert sigma.samples == samples
    like = jax.tree.map(jnp.asarray, LIKE)
    dense.assert_covariance(sigma, like, np.cov(rows.T), atol=1e-12)


def test_the_terms_add_up_to_the_moment(x64):
    sigma = EstimatedCovariance.of(stacked(np.random.default_rng(1).normal(size=(30, 5))))
    form = lambda x: {"one": jnp.sum(x["a"] ** 2), "two": x["a"][0] * x["b"]}
    terms, moment = sigma.terms(form), sigma.moment(form)
    assert terms["one"].shape == (30,)
    assert terms["two"].shape == (30, 2)
    for name in moment:
        np.testing.assert_allclose(terms[name].sum(axis=0), moment[name], rtol=1e-12)


def test_the_standard_errors_are_the_spread_over_data_sets(x64):
    """Gaussian draws: Var Tr[Sigma A] = 2 Tr[(S A)^2]/(n - 1), S the true covariance."""
    rng, samples = np.random.default_rng(2), 400
    root = rng.normal(size=(5, 5))
    truth = root @ root.T
    diagonal = np.array([1.0, -1.0, 2.0, 0.5, 1.0])
    weigh = lambda x: {"a": x["a"] * diagonal[:4].reshape(2, 2), "b": x["b"] * diagonal[4]}

    def one(rows):
        sigma = EstimatedCovariance.of({"a": rows[:, :4].reshape(-1, 2, 2), "b": rows[:, 4]})
        return sigma.trace(), sigma.trace_error(), sigma.trace(weigh), sigma.trace_error(weigh)

    rows = rng.normal(size=(300, samples, 5)) @ root.T
    trace, error, weighted, weighted_error = (np.asarray(x) for x in jax.jit(jax.vmap(one))(jnp.asarray(rows)))
    for value, reported, matrix in ((trace, error, truth), (weighted, weighted_error, truth @ np.diag(diagonal))):
        exact = np.sqrt(2 * np.trace(matrix @ matrix) / (samples - 1))
        assert abs(value.mean() - np.trace(matrix)) < 5 * exact / np.sqrt(300)
        assert 0.85 < value.std() / exact < 1.15
        assert 0.97 < reported.mean() / exact < 1.03


def test_the_moment_error_has_the_shape_of_the_moment():
    sigma = EstimatedCovariance.of(jnp.arange(12.0).reshape(4, 3) ** 2)
    error = sigma.moment_error(lambda x: x**2)
    assert error.shape == (3,)
    np.testing.assert_allclose(error, 2 * np.std(np.asarray(sigma.factor()).T ** 2, axis=0, ddof=1), rtol=1e-5)
