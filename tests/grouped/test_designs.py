"""The designs for grouped data have the distributions that their docstrings state."""

import numpy as np
import pytest

from undertow.grouped.designs import DESIGNS, grouped_design

LARGE = 20_000


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_has_its_stated_distribution(name):
    """The truth leaves a residual that is uncorrelated with the causes in every environment, but not with children."""
    design = grouped_design(name, 5, n=LARGE, d=12)
    assert design.X.shape == (5 * LARGE, 12)
    assert np.unique(design.groups).tolist() == list(range(5))
    residual = design.y - design.X @ design.truth
    causes = design.truth != 0
    assert not (causes & design.children).any()
    spurious = []
    for e in range(5):
        rows = design.groups == e
        r = residual[rows]
        # correlations of independent columns have standard deviation 1/sqrt(n)
        for j in np.flatnonzero(~design.children):
            assert abs(np.corrcoef(design.X[rows, j], r)[0, 1]) < 5 / np.sqrt(LARGE)
        spurious.append([np.corrcoef(design.X[rows, j], r)[0, 1] for j in np.flatnonzero(design.children)])
    assert (np.abs(spurious).max() > 0.1) == (name != "iid")
    assert design.error(design.truth) == 0
    assert design.risk(design.truth) == 1
    assert design.risk(np.zeros(12)) > 1
    repeated = grouped_design(name, np.random.default_rng(5), n=LARGE, d=12)
    np.testing.assert_array_equal(repeated.X, design.X)


def slopes(design):
    """a_e of each child: its covariance with y over the variance of y."""
    each = []
    for e in range(5):
        rows = design.groups == e
        x, y = design.X[rows][:, design.children], design.y[rows]
        each.append((x - x.mean(0)).T @ (y - y.mean()) / np.sum((y - y.mean()) ** 2))
    return np.array(each)


@pytest.mark.parametrize(("name", "mean", "spread"), [("flip", 0.3, 1.5), ("mild", 0.7, 1.0)])
def test_signs_are_balanced(name, mean, spread):
    away = (slopes(grouped_design(name, 2, n=LARGE)) - mean) / spread
    assert (np.abs(away) > 0.75).all()
    assert (np.abs(away) < 1.25).all()
    assert (np.abs(np.sign(away).sum(0)) == 1).all()  # three of one sign, two of the other


def test_scales_of_the_chain_and_noises_of_children():
    chain = grouped_design("chain", 1, n=LARGE)
    scale = [chain.X[chain.groups == e, :4].std() for e in range(5)]
    np.testing.assert_allclose(scale, np.geomspace(0.2, 5, 5), rtol=0.05)
    noisy = grouped_design("child noise", 1, n=LARGE)
    deviations = [np.std((noisy.X[:, 4] - noisy.y)[noisy.groups == e]) for e in range(5)]
    np.testing.assert_allclose(deviations, np.geomspace(0.3, 3, 5), rtol=0.05)
    np.testing.assert_allclose(
        np.std(chain.y - chain.X @ chain.truth), np.sqrt(np.mean(np.geomspace(0.04, 25, 5))), rtol=0.05
    )


def test_the_risk_is_the_maximum_over_test_environments():
    design = grouped_design("flip with covariate shift", 6, n=LARGE, d=12)
    wrong = design.truth + 0.3
    errors = [[np.mean((y - X @ w - b) ** 2) for X, y in design.tests] for w, b in ((wrong, 0.5), (design.truth, 0.0))]
    np.testing.assert_allclose(design.risk(wrong, 0.5), max(errors[0]) / max(errors[1]))
    for X, _ in design.tests:  # causes with twice the standard deviation and a mean of one
        np.testing.assert_allclose([X[:, :4].std(), X[:, :4].mean()], [2.0, 1.0], atol=0.1)


def test_causes_and_irrelevant_columns_have_the_stated_correlation():
    design = grouped_design("iid", 4, n=LARGE)
    r = np.corrcoef(design.X.T)
    np.testing.assert_allclose(r[:4, :4], 0.3 ** np.abs(np.subtract.outer(np.arange(4), np.arange(4))), atol=0.02)
    np.testing.assert_allclose(np.abs(r[7:, :4]).max(1), 0.4, atol=0.02)


def test_invalid_input_raises():
    with pytest.raises(ValueError, match="choose one of flip"):
        grouped_design("flop")
    with pytest.raises(ValueError, match="at least 7 columns"):
        grouped_design("flip", d=6)
    with pytest.raises(ValueError, match="`n` must be at least 1"):
        grouped_design("flip", n=0)
