"""The tests of all subsets at once, against the test of one support on rows."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from undertow.grouped import subsets
from undertow.grouped.data import moments_of
from undertow.grouped.designs import DESIGNS, grouped_design
from undertow.grouped.icp import icp
from undertow.grouped.invariance import invariance_test
from undertow.grouped.subsets import screened_columns, subset_tests


def of(design):
    return moments_of("fit", design.X, design.y, design.groups)[0]


@pytest.mark.parametrize("name", DESIGNS)
def test_every_subset_agrees_with_the_test_on_rows(name):
    moments = of(grouped_design(name, seed=3, d=7, n=60))
    tests = subset_tests(moments, np.array([0, 2, 3, 5, 6]))
    assert len({row.tobytes() for row in tests.support}) == 32
    assert not tests.support[:, [1, 4]].any()
    for i, support in enumerate(tests.support):
        one = invariance_test(moments, support)
        assert tests.freedom[i] == one.freedom
        for field in ("statistic", "p_value", "risk", "bic"):
            np.testing.assert_allclose(getattr(tests, field)[i], getattr(one, field), rtol=1e-5, atol=1e-9)


def test_the_passing_subsets_are_those_of_invariant_causal_prediction():
    design = grouped_design("shift", seed=2, d=8)
    tests = subset_tests(of(design), np.arange(8))
    passing = {tuple(np.flatnonzero(support).tolist()) for support in tests.support[tests.p_value > 0.05]}
    reference = icp(design.X, design.y, design.groups)
    assert passing == set(reference.accepted)
    assert (0, 1, 2, 3) in passing


def test_the_causes_pass_as_often_as_the_level_says_if_means_shift():
    """In 200 data sets the share of rejections is within 4 binomial standard deviations (1.5% each) of 5%."""
    rejected = [
        subset_tests(of(grouped_design("shift", seed, d=7, n=200)), np.arange(4)).p_value[-1] < 0.05
        for seed in range(200)
    ]
    assert abs(np.mean(rejected) - 0.05) < 0.06


def test_shifted_means_alone_reject_a_child():
    """A child of y with the same effect in both groups, whose mean differs: only the condition on means is violated.

    If the rows of each group are centred, the child passes.
    """
    rng = np.random.default_rng(4)
    groups = np.repeat([0, 1], 2000)
    cause = rng.normal(size=4000)
    y = cause + rng.normal(size=4000)
    X = np.stack([cause, y + rng.normal(size=4000) + groups], axis=1)
    accepted = lambda X, y: subset_tests(moments_of("fit", X, y, groups)[0], np.arange(2)).p_value > 0.05
    assert accepted(X, y).tolist() == [True, True, False, False]
    means = lambda v: np.stack([v[groups == e].mean(0) for e in (0, 1)])[groups]
    assert accepted(X - means(X), y - means(y)).all()


def test_screening_keeps_the_columns_with_the_largest_ridge_coefficients():
    design = grouped_design("flip", seed=5, n=100)
    moments = of(design)
    x = (design.X - design.X.mean(0)) / design.X.std(0)
    size = np.abs(Ridge(alpha=0.02 * len(x)).fit(x, (design.y - design.y.mean()) / design.y.std()).coef_)
    assert set(screened_columns(moments)) == set(np.argsort(-size)[:10])
    # subsets times groups are bounded: 2^6 subsets of 500 groups
    assert set(screened_columns(moments.take(np.tile(np.arange(5), 100)))) == set(np.argsort(-size)[:6])


def test_rows_in_blocks_give_the_same_fourth_moments(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(25, 3))
    monkeypatch.setattr(subsets, "ROWS_AT_ONCE", 7)
    i, j = np.triu_indices(3)
    expected = np.einsum("ni,nj,nk,nl->ijkl", rows, rows, rows, rows)[i, j][:, i, j] / 25
    np.testing.assert_allclose(subsets._fourth_moments(rows), expected, rtol=1e-12)


def test_small_groups_and_dependent_columns_give_finite_results():
    """A group of two rows, a duplicate column, and y without noise."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(42, 3))
    X[:, 2] = X[:, 0]
    groups = np.repeat([0, 1, 2], [20, 20, 2])
    tests = subset_tests(moments_of("fit", X, 2 * X[:, 0] - 1, groups)[0], np.arange(3))
    assert np.isfinite(tests.statistic).all()
    assert np.isfinite(tests.bic).all()
    first = [support.tolist() for support in tests.support].index([True, False, False])
    assert tests.p_value[first] > 0.9
    assert tests.bic.argmin() in (first, first + 2)
