"""SGD with one environment per step on grouped data: runs against `descend`, and predicted phases against runs."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone

import undertow as ut
from undertow.grouped import hetero_regressor as module
from undertow.grouped.data import moments_of
from undertow.grouped.designs import grouped_design
from undertow.grouped.two_phase import moment_noise


def data(name="flip", seed=0, **sizes):
    design = grouped_design(name, seed, **sizes)
    return design, moments_of("fit", design.X, design.y, design.groups)[0]


def test_an_update_is_the_gradient_step_of_the_mean_squared_error(x64):
    """u <- u - eta dL_e/du on rows, by automatic differentiation, against the update on moments."""
    design, moments = data(n=50, d=8)
    x = (design.X - design.X.mean(0)) / design.X.std(0)
    y = (design.y - design.y.mean()) / design.y.std()

    def loss(params, e):
        u, v = params
        rows = design.groups == e
        return jnp.mean((x[rows] @ (u**2 - v**2) - y[rows]) ** 2) / 2

    rng = np.random.default_rng(0)
    params = tuple(jnp.asarray(rng.uniform(0.1, 0.5, 8)) for _ in range(2))
    noise = moment_noise(moments, jnp.float64)
    for e in range(5):
        np.testing.assert_allclose(noise.problem.losses(params)[e], loss(params, e), rtol=1e-12)
        by_rows = jax.grad(loss)(params, e)
        by_moments = noise.gradient(params, jnp.asarray(e))
        g = moments.gradients(np.asarray(params[0] ** 2 - params[1] ** 2))[e]
        for rows, on_moments, formula in zip(by_rows, by_moments, (2 * params[0] * g, -2 * params[1] * g), strict=True):
            np.testing.assert_allclose(rows, on_moments, atol=1e-12)
            np.testing.assert_allclose(rows, formula, atol=1e-12)


def test_runs_equal_those_of_descend(x64):
    """The same sequence of groups gives the same path as steps of the noise object."""
    _, moments = data(n=100, d=8)
    steps, eta = 40, 0.3
    runs = module._descend(moments, eta, steps, 1e-3, 3, np.random.default_rng(5))
    drawn = np.random.default_rng(5).choice(5, (steps, 3), p=moments.shares)
    noise = moment_noise(moments, jnp.float64)

    @jax.jit
    def path(groups):
        start = (jnp.full(8, 1e-3), jnp.full(8, 1e-3))
        step = lambda p, e: (jax.tree.map(lambda a, g: a - eta * g, p, noise.gradient(p, e)), None)
        return jax.lax.scan(step, start, groups)[0]

    for seed in range(3):
        u, v = path(jnp.asarray(drawn[:, seed]))
        np.testing.assert_allclose(runs.coef[seed], u**2 - v**2, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(runs.log_u[seed], np.log(np.abs(u)), rtol=1e-8)


def test_pooled_is_gradient_descent_on_all_rows():
    design, _ = data("iid", n=100, d=8)
    model = ut.HeteroRegressor(steps=4000, step_size=0.2, seeds=1).fit(design.X, design.y, design.groups)
    columns = np.concatenate([np.ones((500, 1)), design.X], axis=1)
    exact = np.linalg.lstsq(columns, design.y, rcond=None)[0]
    np.testing.assert_allclose(
        model.pooled_coef_[:4], exact[1:5], atol=0.02
    )  # the other coefficients have hardly grown
    np.testing.assert_allclose(model.pooled_intercept_, exact[0], atol=0.05)


def test_children_that_change_sign_are_filtered_and_explained():
    design, _ = data(seed=3)
    model = ut.HeteroRegressor().fit(design.X, design.y, design.groups)
    assert design.error(model.coef_) < 0.1
    assert design.error(model.coef_) < design.error(model.pooled_coef_)
    table = model.diagnosis_
    assert list(table["present"]) == list(design.truth != 0)
    assert not np.isnan(table["predicted_log"]).any()
    assert np.corrcoef(table["predicted_log"], table["simulated_log"])[0, 1] > 0.97
    report = model.report()
    assert len(report.splitlines()) == 31
    assert "filtered: its gradient has different signs in the groups" in report
    assert "present" in report


def test_the_reasons_why_a_variable_is_small():
    """Over 100 steps a decrease of log u by more than one is "filtered", no change "starved", growth "late"."""
    why = lambda first, last, end: module._why(False, first, last, np.nan, 30.0, False, 100, end)
    assert why(0.1, -0.02, -9.0).startswith("filtered")
    assert why(-0.1, 0.0, -9.0).startswith("filtered")
    assert why(0.1, -0.005, -9.0).startswith("starved")
    assert why(0.1, 0.1, -9.0).startswith("late")


def test_a_child_of_constant_sign_is_kept():
    design, _ = data("consistent", seed=3)
    model = ut.HeteroRegressor().fit(design.X, design.y, design.groups)
    assert model.diagnosis_["present"][design.children].all()


def test_diverged_runs_are_counted():
    design, _ = data(n=50, d=8)
    with pytest.raises(ValueError, match="every run diverged; use a smaller"):
        ut.HeteroRegressor(step_size=30.0, steps=300).fit(design.X, design.y, design.groups)
    with pytest.warns(UserWarning, match="of 40 runs diverged and are left out"), pytest.warns(match="do not settle"):
        some = ut.HeteroRegressor(step_size=0.85, steps=150, seeds=40).fit(design.X, design.y, design.groups)
    lost = np.isnan(some.coef_runs_).any(1)
    assert 0 < some.diverged_ < 40
    assert some.diverged_ == lost.sum()
    np.testing.assert_allclose(some.coef_, np.median(some.coef_runs_[~lost], axis=0))


def one_cause(noise=0.0):
    """y = x0 + noise with one distribution in four groups, so that one group per step is nearly gradient descent."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    return X, X[:, 0] + noise * rng.normal(size=400), np.repeat([0, 1, 2, 3], 100)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_runs_with_large_final_coefficients_count_as_diverged(noise):
    """Four steps of size 5 (the default number of steps) end before the coefficients overflow."""
    with pytest.raises(ValueError, match=r"HeteroRegressor\(step_size=5\)`: every run diverged; .* such as 0\."):
        ut.HeteroRegressor(step_size=5.0).fit(*one_cause(noise))


def test_a_run_with_a_larger_error_than_at_the_start_counts_as_diverged():
    """The threshold is a mean squared error over rows of 1.01 times the variance of y."""
    X, y, groups = one_cause(1.0)
    moments = moments_of("fit", X, y, groups)[0]
    ends = np.linspace(-0.2, 2.2, 49)[:, None] * moments.least_squares()
    errors = np.array([np.var(y - X @ moments.original(w)[0]) / np.var(y) for w in ends])
    np.testing.assert_array_equal(module._diverged(moments, ends), errors > 1.01)
    assert 5 < (errors > 1.01).sum() < 44
    beyond = np.array([[np.nan, 0.0, 0.0], [0.0, np.inf, 0.0], [0.0, 0.0, -1e7]])
    assert module._diverged(moments, beyond).all()


@pytest.mark.parametrize("step_size", [0.55, 0.7, 1.2, 10.0])
def test_step_sizes_too_large_to_settle_give_a_warning(step_size):
    """u <- u (1 - 2 eta (u^2 - 1)) has the slope 1 - 4 eta at u = 1: stable for eta < 1/2."""
    X, y, groups = one_cause()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ut.HeteroRegressor(step_size=step_size).fit(X, y, groups)
    assert abs(model.coef_[0] - 1) > 0.05
    assert f"`HeteroRegressor(step_size={step_size:g})`: above 0.5 runs do not settle" in str(caught[-1].message)
    np.testing.assert_allclose(model.largest_step_size_, 0.5, rtol=1e-6)
    lost = np.isnan(model.coef_runs_).any(1).sum()
    assert model.diverged_ == lost
    assert (f"{lost} of 16 runs diverged and are left out" in str(caught[0].message)) == (lost > 0)
    assert np.isnan(model.pooled_coef_).any() == ("the pooled run diverged" in str(caught[0].message))


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_the_largest_step_size_is_the_stability_limit_of_gradient_descent(factor):
    """Near the solution, on all rows and two correlated causes, distances shrink below the limit and grow above it."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    moments = moments_of("fit", X, X @ np.array([1.0, -0.5]) + 0.3 * rng.normal(size=400), np.repeat([0, 1], 200))[0]
    end = moments.least_squares()
    u = np.sqrt(np.abs(end)) * (1 + 1e-6)
    size = module._largest_step_size(moments, end) * factor
    gaps = []
    for _ in range(400):
        w = np.sign(end) * u**2
        u = u * (1 - 2 * size * np.sign(end) * (moments.pooled_second @ w - moments.pooled_cross))
        gaps.append(np.abs(w - end).max())
    assert (gaps[-1] > gaps[200]) == (factor > 1)


def test_the_largest_step_size_when_no_coefficient_has_grown():
    """v shrinks while u grows as long as |1 - 2 eta c| < 1, so eta < 1/|c|."""
    X, y, groups = one_cause(1.0)
    moments = moments_of("fit", X, y, groups)[0]
    strongest = abs(np.corrcoef(X[:, 0], y)[0, 1])
    assert module._largest_step_size(moments, np.zeros(3)) == pytest.approx(1 / strongest)


def test_a_column_uncorrelated_with_y_is_not_reported_as_divergence():
    """Pure noise: no coefficient is fitted and no warning is given."""
    X, _, groups = one_cause()
    model = ut.HeteroRegressor().fit(X, np.random.default_rng(5).normal(size=400), groups)
    assert model.diverged_ == 0
    assert np.abs(model.coef_).max() < 0.05


def test_results_do_not_depend_on_units():
    design, _ = data(n=200, d=8)
    model = ut.HeteroRegressor().fit(design.X, design.y, design.groups)
    scaled = ut.HeteroRegressor().fit(design.X * 1e3 + 5, design.y * 1e-2 - 7, design.groups)
    np.testing.assert_allclose(scaled.coef_, model.coef_ * 1e-5, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(scaled.predict(design.X * 1e3 + 5), model.predict(design.X) * 1e-2 - 7, rtol=1e-6)


def test_scikit_learn_conventions_and_bootstrap():
    design, _ = data(n=200, d=8)
    model = clone(ut.HeteroRegressor(alpha=1e-2, seeds=4).set_params(random_state=3))
    assert model.get_params() == {"alpha": 1e-2, "seeds": 4, "random_state": 3, "step_size": None, "steps": None}
    coef = model.fit(design.X, design.y, design.groups).coef_
    np.testing.assert_array_equal(clone(model).fit(design.X, design.y, design.groups).coef_, coef)
    assert model.score(design.X, design.y) > 0.5
    with pytest.warns(UserWarning, match="5 groups are few"):
        drawn = model.bootstrap(design.X, design.y, design.groups, repeats=30)
    low, high = drawn.interval()
    assert drawn.coef.shape == (30, 8)
    assert ((low[:4] <= coef[:4]) & (coef[:4] <= high[:4])).sum() >= 3
