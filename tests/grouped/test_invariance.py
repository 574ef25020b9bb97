"""The refit and the test of invariance, against textbook formulas and simulations."""

import warnings

import numpy as np
import pytest
from scipy import stats

import undertow as ut
from undertow.grouped.data import moments_of
from undertow.grouped.designs import grouped_design
from undertow.grouped.invariance import invariance_test


def even(x):
    """Return ones: noise that does not depend on x."""
    return np.ones(len(x))


def bent(x):
    return np.abs(x[:, 0])


def steep(x):
    return np.exp(0.7 * x[:, 0])


def rows(rng, noises, n=200, slope=(1.0, -0.5), shape=even):
    """Return groups of one linear model with different x and noise levels; `shape` maps x to the scale of the noise."""
    parts = []
    for e, noise in enumerate(noises):
        x = rng.normal(e % 2, 1 + e % 3, (n, 2))
        parts.append((x, x @ np.array(slope) + 3 + noise * shape(x) * rng.normal(size=n)))
    return (
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y for _, y in parts]),
        np.repeat(range(len(noises)), n),
    )


def test_the_refit_is_generalised_least_squares():
    """Against explicit weighted least squares on rows, with the weights iterated."""
    X, y, groups = (a[:470] for a in rows(np.random.default_rng(1), [0.3, 1.0, 4.0]))
    moments = moments_of("fit", X, y, groups)[0]
    fit = invariance_test(moments, np.array([True, True]))
    design = np.concatenate([np.ones((len(y), 1)), X], axis=1)
    beta = np.zeros(3)
    for _ in range(200):
        noise = np.array([np.mean((y - design @ beta)[groups == e] ** 2) for e in range(3)])
        half = 1 / np.sqrt(noise[groups])
        beta = np.linalg.lstsq(design * half[:, None], y * half, rcond=None)[0]
    coef, intercept = moments.original(fit.coef, fit.intercept)
    np.testing.assert_allclose([intercept, *coef], beta, rtol=1e-6)
    r = y - design @ beta
    np.testing.assert_allclose(fit.risk * y.var(), np.mean(r**2), rtol=1e-6)
    assert fit.freedom == (3 - 1) * (2 + 1)


def test_the_statistic_is_that_of_two_step_gmm():
    """On rows, with W the inverse covariance of all conditions, c' (W - W M (M' W M)^-1 M' W) c over stacked groups."""
    X, y, groups = (a[:470] for a in rows(np.random.default_rng(1), [0.3, 1.0, 4.0], shape=bent))
    moments = moments_of("fit", X, y, groups)[0]
    fit = invariance_test(moments, np.array([True, True]))
    coef, intercept = moments.original(fit.coef, fit.intercept)
    design = np.concatenate([np.ones((len(y), 1)), X], axis=1)
    residual = y - design @ np.array([intercept, *coef])
    slopes, weight = np.zeros((9, 3)), np.zeros((9, 9))
    target = np.zeros(9)
    for e in range(3):
        z, block = design[groups == e], slice(3 * e, 3 * e + 3)
        slopes[block], target[block] = z.T @ z, z.T @ y[groups == e]
        weight[block, block] = np.linalg.inv(
            sum(r**2 * np.outer(a, a) for a, r in zip(z, residual[groups == e], strict=True))
        )
    inner = np.linalg.inv(slopes.T @ weight @ slopes)
    form = weight - weight @ slopes @ inner @ slopes.T @ weight
    np.testing.assert_allclose(fit.statistic, target @ form @ target, rtol=1e-6)
    np.testing.assert_allclose(fit.p_value, stats.chi2.sf(fit.statistic, 6))


@pytest.mark.parametrize("shape", [even, bent, steep])
def test_the_level_of_the_test_with_unequal_noise(shape):
    """The share of rejections in 400 data sets is within 4 binomial standard deviations (1.1% each) of 5%.

    A test that takes the noise as independent of x rejects 24% (bent) and 54% (steep) of these.
    """
    rng = np.random.default_rng(7)
    p = []
    for _ in range(400):
        X, y, groups = rows(rng, [0.2, 1.0, 5.0, 2.0], shape=shape)
        p.append(invariance_test(moments_of("fit", X, y, groups)[0], np.array([True, True])).p_value)
    assert abs(np.mean(np.array(p) < 0.05) - 0.05) < 0.044


@pytest.mark.parametrize("shape", [even, bent])
def test_the_power_of_the_test(shape):
    """With one of two slopes larger by .5 in one of four groups, more than 9 of 10 data sets are rejected."""
    rng = np.random.default_rng(8)
    rejected = []
    for _ in range(100):
        X, y, groups = rows(rng, [1.0, 1.0, 1.0, 1.0], shape=shape)
        y = y + 0.5 * (groups == 0) * X[:, 1]
        rejected.append(invariance_test(moments_of("fit", X, y, groups)[0], np.array([True, True])).p_value < 0.05)
    assert np.mean(rejected) > 0.9


def test_a_model_that_differs_between_groups_is_rejected():
    rng = np.random.default_rng(2)
    X, y, groups = rows(rng, [1.0, 1.0, 1.0])
    y = y + 0.5 * (groups == 1) * X[:, 0]
    moments = moments_of("fit", X, y, groups)[0]
    assert invariance_test(moments, np.array([True, True])).p_value < 1e-6


def test_small_groups_lose_degrees_of_freedom():
    """Two rows can contradict at most two conditions of three."""
    X, y, groups = rows(np.random.default_rng(3), [1.0, 1.0], n=100)
    X, y, groups = X[:102], y[:102], groups[:102]
    assert np.bincount(groups).tolist() == [100, 2]
    assert invariance_test(moments_of("fit", X, y, groups)[0], np.array([True, True])).freedom == 3 + 2 - 3


def test_a_duplicate_column_does_not_change_the_test():
    """A duplicate adds neither a condition nor a coefficient."""
    X, y, groups = rows(np.random.default_rng(3), [1.0, 2.0, 1.0])
    single = invariance_test(moments_of("fit", X, y, groups)[0], np.array([True, True]))
    doubled = np.concatenate([X, X[:, :1]], axis=1)
    twice = invariance_test(moments_of("fit", doubled, y, groups)[0], np.array([True, True, True]))
    assert twice.freedom == single.freedom
    np.testing.assert_allclose(twice.p_value, single.p_value, rtol=1e-6)


def test_a_model_without_noise_is_accepted():
    """The residuals are rounding errors, which are no evidence against the model."""
    X, _, groups = rows(np.random.default_rng(3), [1.0, 2.0, 1.0])
    model = ut.InvariantRegressor().fit(X, 2 * X[:, 0] - 1, groups)
    assert model.invariant_
    assert model.support_.tolist() == [True, False]
    np.testing.assert_allclose([*model.coef_, model.intercept_], [2.0, 0.0, -1.0], atol=1e-9)


def test_a_model_without_degrees_of_freedom_is_not_called_invariant():
    """Two groups of two rows have four conditions, which five coefficients satisfy exactly."""
    rng = np.random.default_rng(3)
    X, groups = rng.normal(size=(4, 4)), np.array([0, 0, 1, 1])
    y = X @ np.ones(4) + rng.normal(size=4)
    fit = invariance_test(moments_of("fit", X, y, groups)[0], np.ones(4, bool))
    assert fit.freedom == 0
    assert np.isnan(fit.p_value)


def fit(name, seed, **sizes):
    design = grouped_design(name, seed, **sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return design, ut.InvariantRegressor().fit(design.X, design.y, design.groups)
