"""Advice before a run: its windows and probabilities against simulations of the recursion in NumPy."""

import numpy as np
import pytest

import undertow as ut
from undertow.sensing.bursts import burst_exponent
from undertow.sensing.decomposition import auxiliary
from undertow.sensing.laws import Gaussian, Table, Uniform, two_point


def test_advice():
    good = ut.advise(two_point(1.0, 8.0))
    assert good.probability > 0.95
    assert good.step_sizes is not None
    assert good.step_sizes[0] < 0.05 < good.step_sizes[1]
    assert "bursts return" in str(good)
    assert "empty" in str(good)
    late = ut.advise(two_point(1.0, 3.0))
    assert late.stop is not None
    assert late.stop[1] < 1000
    for hopeless in (two_point(1.0, 0.5), [5.0, 4.0, 5.5], Gaussian(3.0, 0.5)):
        found = ut.advise(hopeless)
        assert found.step_sizes is None
        assert found.probability == 0
        assert "use another method" in str(found)
    assert "no spurious signal" in str(ut.advise([0.0, 0.0]))
    assert "one sign" in str(ut.advise(Uniform(0.5, 1.5)))


def test_the_last_step_is_where_the_typical_spurious_signal_reaches_a_tenth():
    """q^2 = 0.1 typically, q from alpha: the mean of log q over runs of q <- q (1 + eta s), which has no end."""
    alpha, rng = 1e-4, np.random.default_rng(0)
    told = ut.advise(two_point(1.0, 3.0), alpha=alpha)
    assert told.exponent > 0
    steps, eta = told.stop[1], told.step_size
    up = rng.binomial(steps, 0.5, 4000)
    logs = np.log(alpha) + up * np.log(1 + 4 * eta) + (steps - up) * np.log(abs(1 - 2 * eta))
    error = logs.std() / np.sqrt(len(logs))
    assert abs(logs.mean() - np.log(0.1) / 2) < 5 * error + told.exponent  # the last step is rounded down
    assert f"after step {steps} it is there" in str(told)


@pytest.mark.parametrize("alpha", [1e-3, 1e-5])
def test_the_first_step_is_where_the_true_signal_is_there(alpha):
    """R^2 by the recursion without noise: learnt, but not long ago."""
    told = ut.advise(two_point(1.0, 8.0), alpha=alpha)
    growth = auxiliary(told.step_size, steps=told.stop[0], alpha=alpha).growth
    assert 0.85 < growth[-1] ** 2 < 0.999
    assert growth[round(0.85 * told.stop[0])] ** 2 < 0.85


def filtered(mean, spread, eta, alpha, runs):
    """The share of runs with q^2 < 0.1 after 1.3 times the time in which the true signal comes up from alpha."""
    rng = np.random.default_rng(0)
    q = np.full(runs, alpha)
    for _ in range(int(1.3 * np.log(1 / alpha) / np.log1p(eta)) + 1):
        q = q * (1 + eta * (mean + spread * rng.choice([-1.0, 1.0], runs) - q**2))
    return np.mean(q**2 < 0.1)


def test_the_probability_is_the_share_of_runs_that_are_rid_of_the_signal():
    """Of the recursion in NumPy, stopped in the middle of the window: at the advised step size and at no other more."""
    law, alpha, runs = two_point(1.0, 4.0), 1e-3, 4000
    share = lambda eta: filtered(1.0, 4.0, eta, alpha, runs)
    told = ut.advise(law, alpha=alpha, runs=runs)
    error = np.sqrt(2 * 0.25 / runs)
    assert abs(told.probability - share(told.step_size)) < 5 * error
    low, high = told.step_sizes
    for eta in np.geomspace(low, high, 5):
        assert told.probability > share(eta) - 5 * error - 0.01  # shares are compared to two digits
    assert told.step_size == pytest.approx(high)
    np.testing.assert_allclose(high, 0.9 / 5, rtol=1e-6)  # step_size * max|s| where runs begin to diverge
    # at the lowest one the true signal is learnt just before the typical spurious one is at a tenth
    ratio = lambda eta: (np.log(np.sqrt(0.1) / alpha) / ut.lyapunov(law, eta)) / (np.log(1 / alpha) / np.log1p(eta))
    assert ratio(low) > 1.15 > ratio(0.8 * low)


def test_advice_on_several_directions_is_for_the_worst():
    """One direction that is filtered, one that grows: the exponent is the larger, the tail exponent the smaller."""
    law, runs = Table([[-7.0, -1.7], [9.0, 3.3]]), 8000
    told = ut.advise(law, horizon=200, runs=runs)
    each = [ut.lyapunov(law.component(j), told.step_size) for j in range(2)]
    np.testing.assert_allclose(told.exponent, max(each), rtol=1e-6)
    tails = burst_exponent(law, told.step_size)
    np.testing.assert_allclose(told.tail, min(tails), rtol=1e-5)
    assert np.ptp(each) > 1e-3
    assert np.ptp(tails) > 0.1
    other, share = (filtered(mean, spread, told.step_size, 1e-3, runs) for mean, spread in ((1.0, 8.0), (0.8, 2.5)))
    assert abs(told.probability - share) < 5 * np.sqrt(2 * share * (1 - share) / runs) < abs(other - share)


def test_of_equally_good_step_sizes_the_fastest_to_filter_is_best():
    """A signal that is negative in all environments always dies: the best step size has the least exponent."""
    law = two_point(-3.0, 2.0)
    told = ut.advise(law, horizon=300)
    assert told.probability == 1
    assert told.exponent == pytest.approx(min(ut.lyapunov(law, eta) for eta in np.geomspace(*told.step_sizes, 300)))


def test_a_horizon_cuts_the_window():
    law = two_point(1.0, 8.0)
    whole, short = ut.advise(law), ut.advise(law, horizon=120)
    assert whole.stop[1] == 10_000
    assert short.stop[1] == 120
    assert short.step_sizes[0] > whole.step_sizes[0]
    assert 1.15 * np.log(1e3) / np.log1p(short.step_sizes[0]) < 120


@pytest.mark.slow
def test_advice_keeps_its_word():
    """A run at the advised step, stopped in the advised window."""
    law = two_point(1.0, 6.0)
    told = ut.advise(law)
    assert told.stop is not None
    sensing = ut.MatrixSensing(15, 8000, law)
    steps = round(1.3 * told.stop[0])
    run = ut.descend(sensing, sensing.start(1e-3), step_size=told.step_size, steps=steps, key=0, seeds=64,
                     observe={"seen": sensing.measure}, progress=False)  # fmt: skip
    seen = run.observed["seen"]
    assert np.nanmedian(seen["true"][:, -1]) > 0.8
    assert (seen["spurious"][:, -1] < 0.1).mean() > told.probability - 0.2


def test_advice_on_data():
    """One cause, one child whose correlation flips its sign strongly: told, and true for a run at the advised step."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 500)
    cause = rng.normal(size=2000)
    y = cause + 0.1 * rng.normal(size=2000)
    child = np.array([-2.0, 2.5, -1.9, 2.4])[groups] * y + rng.normal(size=2000)
    told = ut.advise((np.stack([cause, child], axis=1), y, groups))
    assert told.step_size is not None
    assert told.step_sizes is not None
    assert told.stop is not None
    assert told.step_sizes[0] <= told.step_size <= told.step_sizes[1]
    assert told.probability > 0.5
    assert "one sign in all groups: x0." in str(told)
    # by hand: the growth of u a step at the advised step size, covariances in units of pooled standard deviations
    child = (child - child.mean()) / child.std()
    target = (y - y.mean()) / y.std()
    sizes = [np.mean(child[groups == g] * target[groups == g]) for g in range(4)]
    exponent = np.mean(np.log(np.abs(1 + 2 * told.step_size * np.array(sizes) * np.sign(np.mean(sizes)))))
    np.testing.assert_allclose(told.exponent, exponent, rtol=1e-4)
    # and that of the cause, which comes up from alpha = 1e-3 in log(1000)/log(1 + 2 eta c) steps
    c = np.mean((cause - cause.mean()) / cause.std() * target)
    assert told.stop[0] == np.ceil(1.15 * np.log(1000) / np.log1p(2 * told.step_size * c))
    hopeless = ut.advise((cause[:, None], y, groups))
    assert hopeless.step_sizes is None
    assert hopeless.probability == 0
    assert "one sign" in str(hopeless)
    noise = rng.normal(size=(2000, 1)) * np.array([1.0, -1.0, 1.0, -1.0])[groups][:, None]
    nothing = ut.advise((noise + np.array([1.0, -1.0, 1.0, -1.0])[groups][:, None] * cause[:, None], y, groups))
    assert "no signal that holds" in str(nothing)


def test_the_empty_window_of_the_paper_is_only_said_where_it_is_empty():
    """The paper's window opens at a spread of about three thousand."""
    wide = ut.advise(two_point(1.0, 3500.0), horizon=11_000, alpha=0.1, runs=10)
    assert wide.paper_window[0] < wide.paper_window[1]
    assert wide.step_sizes is not None
    assert "empty" not in str(wide)
