"""`advise`: its windows and probabilities against simulations of the recursion in NumPy."""

import numpy as np
import pytest

import undertow as ut
from undertow.grouped.designs import grouped_design
from undertow.sensing.bursts import burst_exponent
from undertow.sensing.decomposition import auxiliary
from undertow.sensing.laws import Gaussian, Table, Uniform, two_point


def test_advice_with_and_without_a_window():
    good = ut.advise(two_point(1.0, 8.0))
    assert good.probability > 0.95
    assert good.step_sizes is not None
    assert good.step_sizes[0] < 0.05 < good.step_sizes[1]
    assert "returns in bursts" in str(good)
    assert "empty" in str(good)
    late = ut.advise(two_point(1.0, 3.0))
    assert late.stop is not None
    assert late.stop[1] < 1000
    for hopeless in (two_point(1.0, 0.5), [5.0, 4.0, 5.5], Gaussian(3.0, 0.5)):
        advice = ut.advise(hopeless)
        assert advice.step_sizes is None
        assert advice.probability == 0
        assert "use another method" in str(advice)
    assert "no spurious signal" in str(ut.advise([0.0, 0.0]))
    assert "one sign" in str(ut.advise(Uniform(0.5, 1.5)))


def test_at_the_last_step_the_typical_spurious_signal_is_a_tenth():
    """exp(2 E log q) = 0.1 for q <- q (1 + eta s) from alpha, which never saturates."""
    alpha, rng = 1e-4, np.random.default_rng(0)
    advice = ut.advise(two_point(1.0, 3.0), alpha=alpha)
    assert advice.exponent > 0
    steps, eta = advice.stop[1], advice.step_size
    up = rng.binomial(steps, 0.5, 4000)
    logs = np.log(alpha) + up * np.log(1 + 4 * eta) + (steps - up) * np.log(abs(1 - 2 * eta))
    error = logs.std() / np.sqrt(len(logs))
    assert abs(logs.mean() - np.log(0.1) / 2) < 5 * error + advice.exponent  # the last step is rounded down
    assert f"it is large after step {steps}" in str(advice)


@pytest.mark.parametrize("alpha", [1e-3, 1e-5])
def test_at_the_first_step_the_true_signal_is_learnt(alpha):
    """R^2 by the recursion without noise is close to 1 at this step, but not 15 % earlier."""
    advice = ut.advise(two_point(1.0, 8.0), alpha=alpha)
    growth = auxiliary(advice.step_size, steps=advice.stop[0], alpha=alpha).growth
    assert 0.85 < growth[-1] ** 2 < 0.999
    assert growth[round(0.85 * advice.stop[0])] ** 2 < 0.85


def filtered(mean, spread, eta, alpha, runs):
    """Return the share of runs with q^2 < 0.1 after 1.3 times the time in which the true signal grows from alpha."""
    rng = np.random.default_rng(0)
    q = np.full(runs, alpha)
    for _ in range(int(1.3 * np.log(1 / alpha) / np.log1p(eta)) + 1):
        q = q * (1 + eta * (mean + spread * rng.choice([-1.0, 1.0], runs) - q**2))
    return np.mean(q**2 < 0.1)


def test_the_probability_is_the_share_of_runs_that_filter_the_signal():
    """The runs of the recursion in NumPy stop in the middle of the window. No other step size has a larger share."""
    law, alpha, runs = two_point(1.0, 4.0), 1e-3, 4000
    share = lambda eta: filtered(1.0, 4.0, eta, alpha, runs)
    advice = ut.advise(law, alpha=alpha, runs=runs)
    error = np.sqrt(2 * 0.25 / runs)
    assert abs(advice.probability - share(advice.step_size)) < 5 * error
    low, high = advice.step_sizes
    for eta in np.geomspace(low, high, 5):
        assert advice.probability > share(eta) - 5 * error - 0.01  # shares are compared to two digits
    assert advice.step_size == pytest.approx(high)
    np.testing.assert_allclose(high, 0.9 / 5, rtol=1e-6)  # step_size * max|s| where runs begin to diverge
    # at the smallest step size the true signal is learnt just before the typical spurious one reaches a tenth
    ratio = lambda eta: (np.log(np.sqrt(0.1) / alpha) / ut.lyapunov(law, eta)) / (np.log(1 / alpha) / np.log1p(eta))
    assert ratio(low) > 1.15 > ratio(0.8 * low)


def test_the_simulated_runs_end_well_after_the_true_signal_is_learnt(monkeypatch):
    """The true signal grows from alpha to 1 in log(1/alpha)/log(1 + eta) steps; the runs have 30 % more."""
    seen = []

    def recorded(law, eta, *, steps, runs, **rest):
        seen.append((eta, steps))
        return np.zeros(runs), None

    monkeypatch.setattr("undertow.sensing.advise.scalar_map", recorded)
    ut.advise(two_point(1.0, 4.0), alpha=1e-3)
    etas, steps = np.array(seen).T
    np.testing.assert_array_equal(steps, np.ceil(1.3 * np.log(1e3) / np.log1p(etas)))
    assert len(steps) > 5


def test_advice_on_several_directions_is_for_the_worst_direction():
    """The exponent is the largest and the tail exponent the smallest over the directions."""
    law, runs = Table([[-7.0, -1.7], [9.0, 3.3]]), 8000
    advice = ut.advise(law, horizon=200, runs=runs)
    each = [ut.lyapunov(law.component(j), advice.step_size) for j in range(2)]
    np.testing.assert_allclose(advice.exponent, max(each), rtol=1e-6)
    tails = burst_exponent(law, advice.step_size)
    np.testing.assert_allclose(advice.tail, min(tails), rtol=1e-5)
    assert np.ptp(each) > 1e-3
    assert np.ptp(tails) > 0.1
    share_of_first, share = (
        filtered(mean, spread, advice.step_size, 1e-3, runs) for mean, spread in ((1.0, 8.0), (0.8, 2.5))
    )
    assert abs(advice.probability - share) < 5 * np.sqrt(2 * share * (1 - share) / runs) < abs(share_of_first - share)


def test_of_equally_good_step_sizes_the_fastest_to_filter_is_best():
    """A signal that is negative in all environments always decays, so the best step size has the smallest exponent."""
    law = two_point(-3.0, 2.0)
    advice = ut.advise(law, horizon=300)
    assert advice.probability == 1
    assert advice.exponent == pytest.approx(min(ut.lyapunov(law, eta) for eta in np.geomspace(*advice.step_sizes, 300)))


def test_a_horizon_limits_the_window():
    law = two_point(1.0, 8.0)
    unlimited, short = ut.advise(law), ut.advise(law, horizon=120)
    assert unlimited.stop[1] == 10_000
    assert short.stop[1] == 120
    assert short.step_sizes[0] > unlimited.step_sizes[0]
    assert 1.15 * np.log(1e3) / np.log1p(short.step_sizes[0]) < 120


@pytest.mark.slow
def test_a_run_at_the_advised_step_size_filters_the_signal():
    """The run stops in the advised window."""
    law = two_point(1.0, 6.0)
    advice = ut.advise(law)
    assert advice.stop is not None
    sensing = ut.MatrixSensing(15, 8000, law)
    steps = round(1.3 * advice.stop[0])
    run = ut.descend(sensing, sensing.start(1e-3), step_size=advice.step_size, steps=steps, key=0, seeds=64,
                     observe={"measured": sensing.measure}, progress=False)  # fmt: skip
    measured = run.observed["measured"]
    assert np.nanmedian(measured["true"][:, -1]) > 0.8
    assert (measured["spurious"][:, -1] < 0.1).mean() > advice.probability - 0.2


def test_advice_on_data():
    """The advice for one cause and one child whose correlation changes its sign, against a run with this advice."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 500)
    cause = rng.normal(size=2000)
    y = cause + 0.1 * rng.normal(size=2000)
    child = np.array([-2.0, 2.5, -1.9, 2.4])[groups] * y + rng.normal(size=2000)
    advice = ut.advise((np.stack([cause, child], axis=1), y, groups))
    assert advice.step_size is not None
    assert advice.step_sizes is not None
    assert advice.stop is not None
    assert advice.step_sizes[0] <= advice.step_size <= advice.step_sizes[1]
    assert advice.probability > 0.5
    assert "one sign in all groups: x0." in str(advice)
    # by hand: the growth of u per step at the advised step size, covariances in units of pooled standard deviations
    child = (child - child.mean()) / child.std()
    target = (y - y.mean()) / y.std()
    sizes = [np.mean(child[groups == g] * target[groups == g]) for g in range(4)]
    exponent = np.mean(np.log(np.abs(1 + 2 * advice.step_size * np.array(sizes) * np.sign(np.mean(sizes)))))
    np.testing.assert_allclose(advice.exponent, exponent, rtol=1e-4)
    # the cause grows from alpha = 1e-3 to 1 in log(1000)/log(1 + 2 eta c) steps
    c = np.mean((cause - cause.mean()) / cause.std() * target)
    assert advice.stop[0] == np.ceil(1.15 * np.log(1000) / np.log1p(2 * advice.step_size * c))
    hopeless = ut.advise((cause[:, None], y, groups))
    assert hopeless.step_sizes is None
    assert hopeless.probability == 0
    assert "one sign" in str(hopeless)
    noise = rng.normal(size=(2000, 1)) * np.array([1.0, -1.0, 1.0, -1.0])[groups][:, None]
    nothing = ut.advise((noise + np.array([1.0, -1.0, 1.0, -1.0])[groups][:, None] * cause[:, None], y, groups))
    assert "no signal that holds" in str(nothing)


def test_the_window_of_the_paper_is_called_empty_only_where_it_is():
    """The window of the paper is not empty above a spread of about 3,000."""
    wide = ut.advise(two_point(1.0, 3500.0), horizon=11_000, alpha=0.1, runs=10)
    assert wide.paper_window[0] < wide.paper_window[1]
    assert wide.step_sizes is not None
    assert "empty" not in str(wide)


def test_a_direction_without_a_signal_sets_no_last_step():
    """A signal of size zero neither grows nor decays: it is small at every step, so the horizon is the last one."""
    advice = ut.advise(Table([[0.0, -7.0], [0.0, 9.0]]), horizon=500, runs=100)
    assert advice.exponent == 0
    assert advice.stop[1] == 500


def test_advice_on_data_with_a_weak_cause():
    """By hand: a cause of correlation c grows from 1e-3 to 1 in log(1000)/log(1 + 2 eta c) steps, here with c = 0.4."""
    rng = np.random.default_rng(1)
    groups, cause = np.repeat(np.arange(4), 500), rng.normal(size=2000)
    y = 0.4 * cause + 0.9 * rng.normal(size=2000)
    child = np.array([-2.0, 2.5, -1.9, 2.4])[groups] * y + rng.normal(size=2000)
    advice = ut.advise((np.stack([cause, child], axis=1), y, groups), runs=200)
    c = np.corrcoef(cause, y)[0, 1]
    assert 0.3 < c < 0.5
    assert advice.stop[0] == np.ceil(1.15 * np.log(1000) / np.log1p(2 * advice.step_size * c))


def test_only_five_of_many_variables_are_named():
    rng = np.random.default_rng(2)
    y = rng.normal(size=400)
    X = y[:, None] + 0.1 * rng.normal(size=(400, 12))
    advice = ut.advise((X, y, np.repeat([0, 1], 200)))
    assert str(advice).endswith("in all groups: x0, x1, x2, x3, x4 and 7 more.")


def test_advice_prints_and_plots_its_windows():
    advice = ut.advise(two_point(1.0, 8.0), runs=50)
    lines = str(advice).splitlines()
    assert lines[1].split()[:5] == ["step", "sizes", f"{advice.step_sizes[0]:.3g}", "to", f"{advice.step_sizes[1]:.3g}"]
    assert [line.split("  ")[0] for line in lines[2:5]] == ["best step size", "stop at steps", "probability"]
    assert lines[7:] == list(advice.warnings)
    assert f"{advice.step_size:.3g}" in advice._repr_html_()
    window, best = advice.plot().get_lines()
    assert list(window.get_xdata()) == list(advice.step_sizes)
    assert list(best.get_xdata()) == [advice.step_size] * 2
    hopeless = ut.advise(two_point(1.0, 0.5))
    assert {text.get_text() for text in hopeless.plot().texts} == {
        "learn the true signal first: empty", "theorem of the paper: empty",
    }  # fmt: skip


def test_the_table_claims_no_decay_of_a_signal_that_grows():
    """A window contains step sizes at which the spurious signal grows, but later than the true one."""
    design = grouped_design("flip", seed=0)
    advice = ut.advise((design.X, design.y, design.groups))
    assert advice.exponent > 0
    assert "still grows" in str(advice)
    assert "decays" not in str(advice)
