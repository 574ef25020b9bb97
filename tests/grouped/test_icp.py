"""Invariant causal prediction: which subsets are accepted, and their intersection."""

import itertools

import numpy as np
import pytest

import undertow as ut
from undertow.grouped.data import moments_of
from undertow.grouped.designs import grouped_design
from undertow.grouped.icp import all_subsets, icp
from undertow.grouped.invariance import invariance_test

SMALL = {"d": 6, "causes": 2, "children": 2}


def test_every_subset_is_tested():
    """At the default level, and at a level that accepts half of the subsets accepted there."""
    design = grouped_design("flip with covariate shift", 3, **SMALL)
    moments = moments_of("icp", design.X, design.y, design.groups)[0]
    fits = {
        subset: invariance_test(moments, np.isin(np.arange(6), subset))
        for subset in itertools.chain.from_iterable(itertools.combinations(range(6), k) for k in range(7))
    }
    half = float(np.median([fit.p_value for fit in fits.values() if fit.p_value > 0.05]))
    for level in (0.05, half):
        passing = {subset: fit.risk for subset, fit in fits.items() if fit.p_value > level}
        result = icp(design.X, design.y, design.groups, level=level)
        assert set(result.accepted) == set(passing)
        assert result.best == min(passing, key=passing.__getitem__)
        assert np.flatnonzero(result.parents).tolist() == [j for j in range(6) if all(j in s for s in passing)]


def test_causes_whose_distribution_changes_are_identified():
    """All causes change between groups, so that each is needed, and no accepted subset needs a child."""
    design = grouped_design("flip with covariate shift", 3, **SMALL)
    result = icp(design.X, design.y, design.groups)
    assert np.flatnonzero(result.parents).tolist() == [0, 1]
    assert design.error(result.coef) < 0.05


def test_causes_whose_distribution_is_constant_are_not_identified():
    """The law of y is the same in all groups, so that the empty set is invariant and the intersection is empty."""
    design = grouped_design("flip", 3, **SMALL)
    result = icp(design.X, design.y, design.groups)
    assert () in result.accepted
    assert not result.parents.any()
    assert not set(result.best) & set(np.flatnonzero(design.children))


def test_no_accepted_subset_and_too_many_columns():
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=(600, 1)), np.repeat([0, 1], 300)
    result = icp(x, 3.0 * groups + rng.normal(size=600), groups)
    assert (result.accepted, result.best, result.coef) == ((), None, None)
    with pytest.raises(ValueError, match=r"2\^15 subsets; screen it to at most 14"):
        icp(rng.normal(size=(600, 15)), x[:, 0], groups)


def test_the_estimator_finds_the_subset_of_the_full_search():
    """The support of the estimator is an accepted subset whose risk is close to the best."""
    design = grouped_design("mild", 4, **SMALL)
    moments = moments_of("icp", design.X, design.y, design.groups)[0]
    full = all_subsets(moments, np.arange(6), 0.05)
    model = ut.InvariantRegressor().fit(design.X, design.y, design.groups)
    assert tuple(np.flatnonzero(model.support_).tolist()) in full.accepted
    best = invariance_test(moments, np.isin(np.arange(6), full.best)).risk
    assert invariance_test(moments, model.support_).risk <= best + 0.01
