"""Growth in two phases, against simulations and recursions."""

import dataclasses

import numpy as np
import pytest

from undertow.grouped import hetero_regressor as module
from undertow.grouped.data import moments_of
from undertow.grouped.designs import grouped_design
from undertow.grouped.two_phase import growth_phases, moment_noise


def data(name="flip", seed=0, **sizes):
    design = grouped_design(name, seed, **sizes)
    return design, moments_of("fit", design.X, design.y, design.groups)[0]


@pytest.mark.parametrize("theta", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("mean", [0.1, 0.3])
def test_the_condition_for_two_values(theta, mean):
    """s = m +- M at eta = theta/(2(m + M)): lam < 0 iff M > m (1 + 2/theta)."""
    edge = mean * (1 + 2 / theta)
    for spread, sign in ((edge * 1.02, -1), (edge * 0.98, 1)):
        eta = theta / (2 * (mean + spread))
        growth = np.mean(np.log(np.abs(1 + 2 * eta * np.array([mean - spread, mean + spread]))))
        assert np.sign(growth) == sign


def correlation(causes, seed, seeds=64):
    """Return the correlation of predicted log u and log v with means over simulated runs, without the causes."""
    design, moments = data(seed=seed, causes=causes)
    truth = design.truth * moments.scale[:-1] / moments.scale[-1]
    eta, alpha = module._safe_step_size(moments), 1e-6
    arrived = growth_phases(moments, truth, step_size=eta, steps=100_000, alpha=alpha).t1
    steps = int(1.5 * arrived)
    phases = growth_phases(moments, truth, step_size=eta, steps=steps, alpha=alpha)
    runs = module._descend(moments, eta, steps, alpha, seeds, np.random.default_rng(seed))
    simulated = np.stack([runs.log_u.mean(0), runs.log_v.mean(0)])
    others = truth == 0
    against = lambda predicted: np.corrcoef(predicted[:, others].ravel(), simulated[:, others].ravel())[0, 1]
    return against(phases.end), against(phases.two_phase(alpha, steps))


def test_the_two_phase_law_correlates_with_simulations_for_one_cause():
    phases, two = correlation(causes=1, seed=100)
    assert phases > 0.99
    assert two > 0.99


def unequal():
    """Return columns, target, labels, moments and the coefficient of the cause, for five groups of unequal size."""
    design = grouped_design("flip", 200, causes=1)
    rows = np.concatenate([np.flatnonzero(design.groups == e)[:n] for e, n in enumerate((100, 200, 400, 700, 1000))])
    x = (design.X[rows] - design.X[rows].mean(0)) / design.X[rows].std(0)
    y = (design.y[rows] - design.y[rows].mean()) / design.y[rows].std()
    moments = moments_of("fit", x, y, design.groups[rows])[0]
    return x, y, design.groups[rows], moments, np.where(np.arange(30) == 0, moments.pooled_cross[0], 0.0)


def test_rates_are_means_over_rows():
    """Groups are drawn in proportion to their rows, so that E_e is the mean over rows of the value of their group."""
    x, y, groups, moments, w = unequal()
    phases = growth_phases(moments, w, step_size=0.3, steps=50)
    for rates, at in ((phases.first, np.zeros(30)), (phases.last, w)):
        by_row = np.zeros((2, len(y), 30))
        for e in range(5):
            members = groups == e
            g = np.mean(x[members] * (x[members] @ at - y[members])[:, None], axis=0)
            by_row[:, members] = np.log(np.abs([1 - 0.6 * g, 1 + 0.6 * g]))[:, None]
        np.testing.assert_allclose(rates, by_row.mean(1), atol=1e-12)
    growth = np.log(np.sqrt(abs(w[0])) / 1e-3) / phases.first[0 if w[0] > 0 else 1, 0]
    assert phases.t1 == pytest.approx(growth)
    two = np.log(1e-3) + phases.t1 * phases.first + (50 - phases.t1) * phases.last
    np.testing.assert_allclose(phases.two_phase(1e-3, 50), two)
    np.testing.assert_allclose(phases.end[:, 1:], two[:, 1:])
    noise = moment_noise(moments)
    np.testing.assert_allclose(noise.weights, np.bincount(groups) / len(groups), rtol=1e-6)
    # the cause stays at its final value
    assert phases.end[0 if w[0] > 0 else 1, 0] == pytest.approx(np.log(np.sqrt(abs(w[0]))), abs=1e-12)


def test_the_law_predicts_sizes_in_unequal_groups():
    """Slope, offset and distance of simulated over predicted growth; with equal shares the distance is .47."""
    *_, moments, w = unequal()
    eta, alpha = module._safe_step_size(moments), 1e-24
    steps = int(1.5 * growth_phases(moments, w, step_size=eta, steps=10**6, alpha=alpha).t1)
    runs = module._descend(moments, eta, steps, alpha, 64, np.random.default_rng(0))
    simulated = np.stack([runs.log_u.mean(0), runs.log_v.mean(0)])[:, 1:].ravel() - np.log(alpha)

    def predicted(m):
        return growth_phases(m, w, step_size=eta, steps=steps, alpha=alpha).end[:, 1:].ravel() - np.log(alpha)

    law, equal = predicted(moments), predicted(dataclasses.replace(moments, sizes=np.ones(5, int)))
    assert law.max() + np.log(alpha) < np.log(0.01)  # all coefficients stay small
    slope, offset = np.polyfit(law, simulated, 1)
    assert abs(slope - 1) < 0.02
    assert abs(offset) < 0.2
    distance = lambda values: np.sqrt(np.mean((simulated - values) ** 2) / np.mean(simulated**2))
    assert distance(law) < 0.03
    assert distance(equal) > 0.2


@pytest.mark.slow
def test_correlations_over_many_designs():
    """The two-phase law for one cause; for four causes one phase each, which is better than a single t1."""
    assert np.median([correlation(1, seed)[1] for seed in range(200, 220)]) > 0.99
    four = np.array([correlation(4, seed) for seed in range(200, 220)])
    assert np.median(four[:, 0]) > 0.99
    assert np.median(four[:, 0]) > np.median(four[:, 1])


def test_a_variable_of_constant_sign_grows_in_every_phase():
    """If all s_e have one sign, E log|1 + 2 eta s_e| > 0 for every step size."""
    _, moments = data("consistent", d=8)
    for eta in np.geomspace(1e-3, 10, 9):
        phases = growth_phases(moments, np.zeros(8), step_size=eta, steps=10)
        one_sign = (moments.cross > 0).all(0)
        assert one_sign.any()
        assert (phases.first[0, one_sign] > 0).all()
        np.testing.assert_allclose(phases.end, np.log(1e-3) + 10 * phases.first)


def test_a_variable_that_starts_above_its_final_size_has_arrival_time_zero():
    """One variable with y = x/100: u starts at 1, above sqrt(0.01)."""
    x = np.array([-1.0, 1.0, -1.0, 1.0])[:, None]
    moments = moments_of("fit", x, x[:, 0], np.array([0, 0, 1, 1]))[0]
    phases = growth_phases(moments, np.array([0.01]), step_size=0.1, steps=20, alpha=1.0)
    assert phases.t1 == 0
