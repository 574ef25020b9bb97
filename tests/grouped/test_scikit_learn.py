"""The estimators in scikit-learn: its checks, metadata routing and cross-validation over groups."""

import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import _num_samples, check_is_fitted

import undertow as ut
from undertow.grouped.designs import grouped_design

ESTIMATORS = (ut.HeteroRegressor, ut.InvariantRegressor)


class RoutesGroups(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """Route two alternating groups to `fit` of an estimator: the checks of scikit-learn call `fit(X, y)`."""

    def __init__(self, estimator=None):
        self.estimator = estimator

    def get_metadata_routing(self):
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner="RoutesGroups").add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=mapping)

    def fit(self, X, y):
        routed = process_routing(self, "fit", groups=np.arange(_num_samples(X)) % 2)
        self.estimator_ = clone(self.estimator).fit(X, y, **routed.estimator.fit)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict(self, X):
        check_is_fitted(self)
        return self.estimator_.predict(X)

    def __sklearn_tags__(self):
        return get_tags(self.estimator)


@pytest.fixture(autouse=True)
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def checks(kind):
    with sklearn.config_context(enable_metadata_routing=True):
        model = RoutesGroups(kind().set_fit_request(groups=True))
        found = list(estimator_checks_generator(model))
    return [pytest.param(kind, check, id=f"{kind.__name__}-{check.func.__name__}") for _, check in found]


@pytest.mark.parametrize(("kind", "check"), [case for kind in ESTIMATORS for case in checks(kind)])
def test_the_checks_of_scikit_learn_pass(kind, check, as_a_user):
    """Every check of `check_estimator`, without an exception. scikit-learn skips the one for other array libraries.

    The data of some checks have no invariant model, so warnings that say this are ignored.
    """
    model = RoutesGroups(kind().set_fit_request(groups=True))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`InvariantRegressor`:")
        check(model)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_cross_validation_leaves_out_groups_and_routes_the_others_to_fit(kind):
    """Each score is that of a fit without the group that is left out."""
    design = grouped_design("flip", seed=1, n=200, d=10)
    X, y, groups = design.X, design.y, design.groups
    model = kind().set_fit_request(groups=True)
    result = cross_validate(model, X, y, cv=GroupKFold(5), params={"groups": groups}, return_estimator=True)
    left_out = [set(range(5)) - set(each.groups_) for each in result["estimator"]]
    assert sorted(next(iter(group)) for group in left_out) == [0, 1, 2, 3, 4]
    for (group,), score in zip(left_out, result["test_score"], strict=True):
        test = groups == group
        expected = kind().fit(X[~test], y[~test], groups[~test]).score(X[test], y[test])
        assert score == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_pipeline_routes_groups(kind):
    design = grouped_design("flip", seed=1, n=200, d=10)
    pipeline = make_pipeline(StandardScaler(), kind().set_fit_request(groups=True))
    pipeline.fit(design.X, design.y, groups=design.groups)
    direct = kind().fit(design.X, design.y, design.groups)
    np.testing.assert_allclose(pipeline.predict(design.X), direct.predict(design.X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_groups_that_are_not_requested_raise_in_scikit_learn(kind):
    design = grouped_design("flip", seed=1, n=50, d=10)
    with pytest.raises(UnsetMetadataPassedError, match="set_fit_request"):
        make_pipeline(StandardScaler(), kind()).fit(design.X, design.y, groups=design.groups)
