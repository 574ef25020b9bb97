"""Grouped data: what is refused and how, and moments against the rows they stand for."""

import numpy as np
import pandas
import pytest

import undertow as ut
from undertow.environments.grouped import Moments, bootstrap, moments_of

RNG = np.random.default_rng(3)
X = RNG.normal(2.0, 3.0, (60, 3))
Y = X @ np.array([1.0, -2.0, 0.0]) + RNG.normal(size=60)
GROUPS = np.repeat(["north", "south", "west"], [10, 20, 30])


def changed(array, index, value):
    array = np.array(array, float)
    array[index] = value
    return array


def frame():
    return pandas.DataFrame(X, columns=["age", "dose", "weight"])


ESTIMATORS = (ut.HeteroRegressor, ut.InvariantRegressor)

MISTAKES = {
    "no groups": (lambda e: e().fit(X, Y), "`groups` is not given"),
    "a group with one row": (lambda e: e().fit(X, Y, ["lone", *GROUPS[1:]]), "group lone has one row"),
    "one group": (lambda e: e().fit(X, Y, ["all"] * 60), "one group only, all"),
    "groups of another length": (lambda e: e().fit(X, Y, GROUPS[1:]), r"`groups` has shape \(59,\) and `X` 60 rows"),
    "a missing group": (lambda e: e().fit(X, Y, [None, *GROUPS[1:]]), "missing labels"),
    "a group that is NaN": (lambda e: e().fit(X, Y, changed(np.repeat([0, 1], 30), 0, np.nan)), "missing labels"),
    "groups of two types": (
        lambda e: e().fit(X, Y, np.array([1, 1, *GROUPS[2:].tolist()], object)),
        "several types; convert them all to text",
    ),
    "a constant column": (lambda e: e().fit(changed(X, (slice(None), 1), 4.0), Y, GROUPS), "column 1 of `X` is const"),
    "a constant column with a name": (
        lambda e: e().fit(frame().assign(dose=1.0), Y, GROUPS),
        "column 'dose' of `X` is constant; leave it out",
    ),
    "a constant y": (lambda e: e().fit(X, np.ones(60), GROUPS), "`y` is constant"),
    "missing values": (lambda e: e().fit(changed(X, (3, 2), np.nan), Y, GROUPS), "column 2 of `X` has missing"),
    "missing values under a name": (
        lambda e: e().fit(frame().where(frame()["age"] > 0), Y, GROUPS),
        "column 'age' of `X` has missing or infinite values",
    ),
    "infinite values": (lambda e: e().fit(changed(X, (3, 0), np.inf), Y, GROUPS), "infinite"),
    "a missing y": (lambda e: e().fit(X, changed(Y, 5, np.nan), GROUPS), "`y` has missing"),
    "y of another length": (lambda e: e().fit(X, Y[1:], GROUPS), r"`y` has shape \(59,\) and `X` 60 rows"),
    "y with two columns": (lambda e: e().fit(X, X[:, :2], GROUPS), r"`y` has shape \(60, 2\)"),
    "text in X": (lambda e: e().fit(X.astype(str).astype(object) + "a", Y, GROUPS), "not a number"),
    "text in y": (lambda e: e().fit(X, GROUPS, GROUPS), "`y` holds what is not a number"),
    "one column without an axis": (lambda e: e().fit(X[:, 0], Y, GROUPS), r"give \(rows, columns\)"),
    "no rows": (lambda e: e().fit(X[:0], Y[:0], GROUPS[:0]), "empty"),
    "no columns": (lambda e: e().fit(X[:, :0], Y, GROUPS), "empty"),
    "alpha of zero": (lambda e: e(alpha=0.0).fit(X, Y, GROUPS), r"\(alpha=0.0\)`: `alpha` must be"),
    "alpha below zero": (lambda e: e(alpha=-1e-3).fit(X, Y, GROUPS), "`alpha` must be"),
    "a bootstrap without repeats": (lambda e: e().bootstrap(X, Y, GROUPS, repeats=0), "`repeats` must be at least 1"),
    "prediction with fewer columns": (lambda e: fitted(e).predict(X[:, :2]), "2 columns, the model was fitted on 3"),
    "prediction with missing values": (lambda e: fitted(e).predict(changed(X, (0, 0), np.nan)), "missing"),
    "prediction with columns in another order": (
        lambda e: e().fit(frame(), Y, GROUPS).predict(frame()[["dose", "age", "weight"]]),
        "column 0 of `X` is 'dose', at fit it was 'age'",
    ),
}  # fmt: skip


def fitted(estimator):
    return estimator().fit(X, Y, GROUPS)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake, estimator, as_a_user):
    call, message = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call(estimator)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"`{estimator.__name__}")


@pytest.mark.parametrize("value", [0.0, -0.1, np.nan, np.inf, "large"])
def test_a_bad_step_size(value, as_a_user):
    with pytest.raises((ValueError, TypeError), match="`step_size` must be"):
        ut.HeteroRegressor(step_size=value).fit(X, Y, GROUPS)


def test_names_of_columns_are_kept_and_forgotten():
    model = ut.InvariantRegressor().fit(frame(), pandas.Series(Y), pandas.Series(GROUPS))
    assert list(model.feature_names_in_) == ["age", "dose", "weight"]
    np.testing.assert_allclose(model.predict(frame()), model.predict(X))
    assert list(model.groups_) == ["north", "south", "west"]
    assert not hasattr(model.fit(X, Y, GROUPS), "feature_names_in_")


def moments():
    return moments_of("fit", X, Y, GROUPS)[0]


def test_moments_are_those_of_the_rows():
    found = moments()
    x, y = (X - X.mean(0)) / X.std(0), (Y - Y.mean()) / Y.std()
    w = np.array([0.3, -0.2, 0.5])
    for e, name in enumerate(["north", "south", "west"]):
        rows = name == GROUPS
        np.testing.assert_allclose(found.second[e], x[rows].T @ x[rows] / rows.sum(), atol=1e-12)
        np.testing.assert_allclose(found.cross[e], x[rows].T @ y[rows] / rows.sum(), atol=1e-12)
        np.testing.assert_allclose(found.gradients(w)[e], x[rows].T @ (x[rows] @ w - y[rows]) / rows.sum(), atol=1e-12)
        np.testing.assert_allclose(found.power[e], np.mean(y[rows] ** 2))
    np.testing.assert_allclose(np.diag(found.pooled_second), 1.0)
    coef, intercept = found.original(found.least_squares())
    design = np.concatenate([np.ones((60, 1)), X], axis=1)
    np.testing.assert_allclose([intercept, *coef], np.linalg.lstsq(design, Y, rcond=None)[0], atol=1e-9)


def test_taking_groups_is_taking_their_rows():
    """Moments of drawn groups, against moments of the rows of those groups under new names."""
    drawn = [2, 0, 2]
    rows = [np.flatnonzero(np.unique(GROUPS)[e] == GROUPS) for e in drawn]
    labels = np.repeat(["a", "b", "c"], [len(r) for r in rows])
    direct = moments_of("fit", X[np.concatenate(rows)], Y[np.concatenate(rows)], labels)[0]
    taken = moments().take(np.array(drawn))
    np.testing.assert_array_equal(taken.sizes, [30, 10, 30])  # the group drawn twice is two groups
    for name in ("joint", "mean", "scale"):
        np.testing.assert_allclose(getattr(taken, name), getattr(direct, name), atol=1e-10)


def test_the_bootstrap_draws_as_many_groups_and_counts_failures():
    base = moments()
    seen: list[Moments] = []

    def estimate(drawn, repeat):
        seen.append(drawn)
        return drawn.original(np.full(3, np.nan) if repeat % 2 else drawn.least_squares())

    with pytest.warns(UserWarning, match="3 groups are few"):
        found = bootstrap("bootstrap", base, estimate, 40, 0)
    assert found.failed == 20
    assert len(found.coef) == 20
    assert all(len(drawn.sizes) == 3 for drawn in seen)
    low, high = found.interval(0.9)
    assert ((low < found.coef.mean(0)) & (found.coef.mean(0) < high)).all()
    assert "20 failed" in str(found)


def test_a_column_that_varies_in_one_group_only_fails_some_draws():
    columns = X.copy()
    columns[GROUPS != "west", 0] = 1.0
    base = moments_of("fit", columns, Y, GROUPS)[0]
    assert base.take(np.array([0, 1, 0])) is None
    assert base.take(np.array([0, 1, 2])) is not None
