"""Coverage of confidence intervals, for few samples and for shares near 0 and 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from undertow import Estimate
from undertow.estimate import share_error, share_interval, standard_error, t_quantile


@pytest.mark.parametrize("samples", [2, 4, 8, 50])
def test_intervals_of_means_cover_95_percent(samples):
    """Two standard errors would cover 86 % with four samples."""
    draws = np.random.default_rng(samples).normal(3.0, 2.0, (samples, 20_000))
    low, high = Estimate.of(jnp.asarray(draws)).interval()
    covered = np.mean((np.asarray(low) <= 3) & (np.asarray(high) >= 3))
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 20_000)


@pytest.mark.parametrize("probability", [1e-3, 0.02, 0.3, 0.97])
def test_intervals_of_shares_cover_at_least_95_percent(probability):
    counts = np.arange(101)
    weights = stats.binom.pmf(counts, 100, probability)
    low, high = share_interval(counts, 100, 0.95)
    assert weights[(low <= probability) & (probability <= high)].sum() >= 0.95


@pytest.mark.parametrize("trials", [5, 64, 1000])
def test_four_standard_errors_of_a_share_cover_like_four_sigmas(trials):
    """The coverage holds for probabilities so small that often no trial succeeds and the binomial formula gives 0."""
    counts = np.arange(trials + 1)
    errors = share_error(counts, trials)
    for probability in np.geomspace(1e-4, 0.5, 40):
        missed = np.abs(counts / trials - probability) > 4 * errors
        assert stats.binom.pmf(counts, trials, probability)[missed].sum() <= 2 * stats.norm.sf(4) * 1.001


def test_the_error_of_a_share_is_binomial_for_many_trials_and_never_zero():
    assert share_error(30_000, 100_000) == pytest.approx(np.sqrt(0.3 * 0.7 / 1e5), rel=0.01)
    assert share_error(0, 50) == share_error(50, 50) > 1 / 50


def test_shares_of_several_quantities_at_once():
    flags = np.array([[True, False], [True, False], [False, False], [True, False]])
    estimate = Estimate.share({"a": flags})
    assert estimate.value["a"].tolist() == [0.75, 0.0]
    assert (estimate.standard_error["a"] > 0).all()
    low, high = estimate.interval(0.9)
    exact = stats.binomtest(3, 4).proportion_ci(0.9)
    assert (low["a"][0], high["a"][0]) == pytest.approx((exact.low, exact.high))
    assert low["a"][1] == 0


def test_one_sample_has_no_standard_error():
    estimate = Estimate.of(jnp.array([2.0]))
    assert estimate.value == 2
    assert np.isnan(estimate.standard_error)


def test_quantiles_for_few_and_many_samples():
    assert t_quantile(0.975, 1) == np.inf
    assert t_quantile(0.975, 5) == pytest.approx(stats.t.ppf(0.975, 4))
    with pytest.raises(ValueError, match="level=95"):
        Estimate.of(jnp.ones(3)).interval(95.0)


def test_the_standard_error_equals_that_of_scipy():
    values = np.random.default_rng(0).normal(size=(7, 5))
    assert np.allclose(standard_error(values), stats.sem(values))
    assert np.allclose(standard_error(values, axis=1), stats.sem(values, axis=1))
    assert np.allclose(standard_error(values, axis=-1, ddof=0), stats.sem(values, axis=1, ddof=0))
    assert np.isclose(float(standard_error([1.0, 3.0])), 1.0)


def test_the_standard_error_equals_that_of_an_estimate():
    values = jnp.asarray(np.random.default_rng(1).normal(size=20))
    assert np.isclose(float(standard_error(values)), float(Estimate.of(values).standard_error))


def test_an_estimate_prints_every_entry_with_its_interval():
    estimate = Estimate.of({"a": jnp.array([1.0, 2.0, 4.0]), "b": jnp.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])})
    title, _, first, *rest = str(estimate).splitlines()
    assert title == "mean of 3 samples"
    low, high = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem([1, 2, 4]))
    assert first.split() == ["a", f"{7 / 3:.4g}", f"{stats.sem([1, 2, 4]):.4g}", f"{low:.4g}", "to", f"{high:.4g}"]
    assert [line.split()[0] for line in rest] == ["b[0]", "b[1]"]
    assert "b[1]" in estimate._repr_html_()
    assert str(Estimate.share(jnp.zeros(100, bool))).splitlines()[0] == "share of 100 samples"
    assert str(Estimate.of(jnp.zeros((3, 20)))).splitlines()[-1] == "... and 8 more entries."


def test_an_estimate_of_one_sample_prints():
    assert str(Estimate.of(jnp.array([2.0]))).splitlines()[-1].split() == ["mean", "2", "nan", "nan", "to", "nan"]


def test_an_estimate_inside_jit_prints_its_structure():
    printed = []
    jax.jit(lambda x: printed.append(str(Estimate.of(x))))(jnp.arange(3.0))
    assert printed[0].startswith("Estimate(")


def test_a_plot_has_every_entry_with_its_interval():
    estimate = Estimate.of(jnp.array([[1.0, 5.0], [2.0, 6.0], [4.0, 6.0]]))
    axes = estimate.plot()
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), estimate.value)
    ends = np.array([segment[:, 1] for segment in axes.collections[0].get_segments()])
    np.testing.assert_allclose(ends.T, np.stack(estimate.interval()), rtol=1e-6)
