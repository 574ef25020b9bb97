"""Laws of environments: their moments against their draws and against each other."""

import jax
import numpy as np
import pytest

from undertow.sensing.laws import Gaussian, Table, Uniform, two_point

LAWS = {
    "table": Table([[-3.0, 1.0], [0.5, -2.0], [7.0, 0.0]], [0.5, 0.2, 0.3]),
    "uniform": Uniform([-30.0, 0.0], [12.0, 2.0]),
    "Gaussian": Gaussian([0.5, -2.0], [8.0, 3.0]),
}
DRAWS = 100_000


@pytest.mark.parametrize("name", LAWS)
def test_the_moments_of_a_law_are_those_of_its_draws(name):
    """Every entry is within five standard errors, at a step size with factors on both sides of 0."""
    law, eta, power = LAWS[name], 0.15, 0.3
    drawn = np.asarray(law.draw(jax.random.key(0), DRAWS), np.float64)
    close = lambda values, exact: (np.abs(values.mean(0) - exact) < 5 * values.std(0) / np.sqrt(DRAWS) + 1e-6).all()
    assert close(drawn, np.asarray(law.mean()))
    centred = drawn - np.asarray(law.mean(), np.float64)
    assert close(centred[:, :, None] * centred[:, None], np.asarray(law.covariance()))
    factors = np.abs(1 + eta * drawn)
    assert close(np.log(factors), law.mean_log(eta))
    assert close(factors**power, np.exp(law.log_moment(eta, power)))
    least, greatest = law.support()
    assert (least <= drawn.min(0) + 1e-6).all()
    assert (greatest >= drawn.max(0) - 1e-6).all()
    # |s| exceeds this once in 10,000 draws: 10 times here, in one of two directions
    assert (np.abs(drawn).max(1) > law.largest() * (1 - 1e-3)).any()
    assert (np.abs(drawn) > law.largest() * (1 + 1e-3)).sum() < 30
    for j in range(law.size):
        component, moved = law.component(j), law.component(j).shifted(0.7)
        np.testing.assert_allclose(component.mean_log(eta), law.mean_log(eta)[j], rtol=1e-6)
        np.testing.assert_allclose(moved.mean(), component.mean() + 0.7, rtol=1e-5)
        np.testing.assert_allclose(moved.covariance(), component.covariance(), rtol=1e-5)


def test_gauss_rules_integrate_polynomials():
    for law in LAWS.values():
        values, weights = (np.asarray(x, np.float64) for x in law.nodes())
        np.testing.assert_allclose((weights * values).sum(0), law.mean(), rtol=1e-4)
        spread = (weights * (values - np.asarray(law.mean())) ** 2).sum(0)
        np.testing.assert_allclose(spread, np.diag(law.covariance()), rtol=1e-4)


def test_supports_of_laws():
    low, high = Gaussian([1.0, 2.0], [0.0, 3.0]).support()
    np.testing.assert_array_equal([low, high], [[1.0, -np.inf], [1.0, np.inf]])
    low, high = Table([-9.0, 1.0, 2.0], [0.0, 0.5, 0.5]).support()  # values of probability zero do not count
    np.testing.assert_array_equal([low, high], [[1.0], [2.0]])


def test_the_largest_value_of_a_table_ignores_rare_environments():
    np.testing.assert_allclose(Table(np.linspace(-4.0, 1.0, 30_001)).largest(), 4.0, rtol=1e-3)
    assert Table([1.0, 50.0], [0.99995, 0.00005]).largest() == 1.0
    assert two_point(1.0, 8.0).largest() == 9.0


@pytest.mark.parametrize("probabilities", [[0.5, np.nan], [np.nan, np.nan], [1.5, -0.5], [0.5, 0.6], [1.0]])
def test_invalid_probabilities_raise(probabilities):
    with pytest.raises(ValueError, match=r"`Table.*: `probabilities"):
        Table([1.0, 2.0], probabilities)


@pytest.mark.parametrize("probabilities", [[np.nan, 1.0], [np.inf, 0.0], [-0.5, 1.5], [0.5, 0.4], [1.0]])
def test_tables_have_probabilities(probabilities):
    with pytest.raises(ValueError, match=r"`Table.*: `probabilities"):
        Table([1.0, 2.0], probabilities)
    np.testing.assert_allclose(Table([1.0, 2.0], [0, 1]).mean(), [2.0])
