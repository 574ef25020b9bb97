"""The experiment on covariances, with a few draws: it accepts the true covariance and rejects a wrong one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scipy.stats import ttest_1samp

import undertow as ut
from undertow import _trees as trees
from undertow.noise.isotropic import Isotropic
from undertow.papers import _covariance_law as law
from undertow.verification.claim import SCALES, Measurement, overall

SMALL = law.Draws(draws=20_000, directions=3, inputs=2, hidden=2, samples=3)
NAME = "isotropic"


def claim(build=lambda net: {NAME: Isotropic(net.problem, 0.3)}):
    """Return the claim on isotropic noise; the rival takes the scale for the variance."""
    rivals = {NAME: lambda noise, params, v: trees.scale(noise.scale, v)}
    return law.covariance_claim("c", "zero_loss", "place", "statement", "equation", build, "alternative", rivals)


def test_the_true_covariance_is_accepted_and_the_rival_rejected(x64):
    measurement = claim().measure(SMALL, jax.random.key(0))
    assert overall(measurement)[0] == "holds"
    ratio, test = measurement.checks
    assert abs(ratio.measured - 1) < 5 * ratio.uncertainty < 0.1
    assert test.measured > 1e-4
    assert test.alternative < 1e-4
    assert measurement.seeds == SMALL.draws
    assert measurement.data.predicted.shape == (1, SMALL.directions)


def test_the_figure_has_one_series_for_each_noise():
    values = xarray.DataArray([[1.0, 2.0], [3.0, 4.0]], dims=("noise", "direction"))
    names = ["one sample", "batch of 3"]
    data = xarray.Dataset(
        {"predicted": values, "measured": 1.01 * values, "error": 0.1 * values}, {}, {"noises": names}
    )
    (axes,) = claim().draw(Measurement((), data, seeds=1), SMALL).axes
    assert "variance" in axes.get_xlabel()
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {*names, "theory"}


def test_a_wrong_covariance_is_rejected(x64, monkeypatch):
    """Ten per cent more variance than the draws have."""
    true = law._along
    monkeypatch.setattr(law, "_along", lambda *args: 1.1 * true(*args))
    measurement = claim().measure(SMALL, jax.random.key(0))
    assert overall(measurement)[0] == "fails"


def test_the_variance_along_a_direction_is_its_quadratic_form():
    middle = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)
    noise = Isotropic(ut.Problem(lambda p, x: jnp.sum(p) * x, jnp.zeros(1)), 1.0)
    directions = jnp.array([[1.0, 0.0], [1.0, -2.0]])
    along = law._along(lambda noise, params, v: jnp.asarray(middle) @ v, noise, jnp.zeros(2), directions)
    np.testing.assert_allclose(along, [2.0, 10.0])


def test_the_p_value_is_that_of_the_largest_t_statistic():
    """The smallest p-value of scipy's t-test over the directions, times their number, at most 1."""
    groups = np.random.default_rng(0).normal(1.0, 0.1, size=(law.GROUPS, 4))
    for predicted in (np.ones(4), np.array([1.0, 1.0, 0.95, 1.0])):
        expected = min(1.0, 4 * ttest_1samp(groups, predicted).pvalue.min())
        assert law._p_value(groups, predicted) == pytest.approx(expected, rel=1e-9)


def test_the_scales_differ_in_the_number_of_draws_alone():
    scales = claim().scales
    assert [scales[name].draws for name in SCALES] == [40_000, 200_000, 2_000_000]
    assert len({(s.directions, s.inputs, s.hidden, s.samples) for s in scales.values()}) == 1
