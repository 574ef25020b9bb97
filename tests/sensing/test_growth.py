"""Growth theory against exact numbers, simulation, and the full matrix problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

import undertow as ut
from undertow.sensing.bursts import burst_exponent
from undertow.sensing.growth import paper_window, phase_diagram, scalar_map, transition_spread
from undertow.sensing.laws import Gaussian, Table, Uniform, two_point

ETA = 0.05
LAWS = {
    "two points": two_point(1.0, 8.0),
    "table": Table([-3.0, 0.5, 7.0], [0.5, 0.2, 0.3]),
    "uniform over the singularity": Uniform(-30.0, 12.0),
    "Gaussian": Gaussian(1.0, 8.0),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_exponent_against_monte_carlo(name):
    law = LAWS[name]
    drawn = np.log(np.abs(1 + ETA * np.asarray(law.draw(jax.random.key(0), 400_000), np.float64)))
    error = drawn.std() / np.sqrt(len(drawn))
    assert abs(ut.lyapunov(law, ETA) - drawn.mean()) < 5 * error


def test_the_exponent_of_a_sampler_has_a_standard_error():
    estimate = ut.lyapunov(lambda key, count: 1 + 8 * jnp.sign(jax.random.normal(key, (count,))), ETA)
    assert abs(float(estimate.value) - ut.lyapunov(two_point(1.0, 8.0), ETA)) < 5 * float(estimate.standard_error)


def test_several_directions_have_several_exponents():
    law = Table([[-7.0, 1.0], [9.0, 1.0]])
    np.testing.assert_allclose(ut.lyapunov(law, ETA), [ut.lyapunov(two_point(1.0, 8.0), ETA), np.log(1.05)], rtol=1e-6)


@pytest.mark.parametrize("name", LAWS)
def test_the_tail_exponent_solves_its_equation(name):
    law = LAWS[name]
    kappa = ut.tail_exponent(law, ETA)
    if ut.lyapunov(law, ETA) >= 0:
        assert kappa == 0
    else:
        assert kappa > 0
        factors = np.abs(1 + ETA * np.asarray(law.draw(jax.random.key(1), 400_000), np.float64)) ** kappa
        assert abs(factors.mean() - 1) < 5 * factors.std() / np.sqrt(len(factors))


def kappa_by_quad(mean, deviation, eta):
    """The positive root of E|1 + eta s|^kappa = 1 for a Gaussian s, by adaptive quadrature split at s = -1/eta."""
    zero, ends = -(1 / eta + mean) / deviation, (-12.0, 12.0)
    inside = lambda z, k: np.exp(-z * z / 2) * abs(1 + eta * (mean + deviation * z)) ** k / np.sqrt(2 * np.pi)
    points = [zero, 0.0] if ends[0] < zero < ends[1] else [0.0]
    excess = lambda k: quad(inside, *ends, args=(k,), points=points, limit=400)[0] - 1
    return brentq(excess, 1e-3, 6.0)


def test_the_tail_exponent_of_gaussians_that_cross_the_singularity():
    """Three laws with known exponents, then random laws."""
    for mean, deviation, eta, kappa in ((0.5, 8.0, 0.15, 0.192), (0.5, 8.0, 0.1345, 0.294), (0.5, 6.0, 0.2, 0.163)):
        np.testing.assert_allclose(ut.tail_exponent(Gaussian(mean, deviation), eta), kappa, atol=5e-4)
    rng = np.random.default_rng(1)
    for _ in range(12):
        eta, mean = 10 ** rng.uniform(-1.5, 0), rng.uniform(-1, 0.3)
        deviation = (
            rng.uniform(0.5, 1.4) / eta
        )  # the factor 1 + eta s changes sign within about two standard deviations
        law = Gaussian(mean, deviation)
        exact = kappa_by_quad(float(law.centre[0]), float(law.deviation[0]), eta)
        np.testing.assert_allclose(ut.tail_exponent(law, eta), exact, rtol=1e-5)
        np.testing.assert_allclose(burst_exponent(Gaussian(mean + 2.0, deviation), eta, signal=2.0), exact, rtol=1e-4)


def test_the_tail_exponent_of_uniforms_that_cross_the_singularity():
    """E|1 + eta s|^kappa = (b^(kappa + 1) + a^(kappa + 1))/((kappa + 1)(a + b)) on [-a, b]."""
    rng = np.random.default_rng(2)
    for _ in range(12):
        eta, b = 10 ** rng.uniform(-2, 0), rng.uniform(1.05, 2.0)
        a = rng.uniform(0, b)
        law = Uniform((-a - 1) / eta, (b - 1) / eta)
        a, b = -1 - eta * float(law.low[0]), 1 + eta * float(law.high[0])  # after rounding
        excess = lambda k, a=a, b=b: (b ** (k + 1) + a ** (k + 1)) / ((k + 1) * (a + b)) - 1
        np.testing.assert_allclose(ut.tail_exponent(law, eta), brentq(excess, 1e-3, 100.0), rtol=1e-9)


def test_the_tail_exponent_at_small_steps():
    """For a Gaussian E exp(kappa eta s) = 1 gives kappa = -2 mean/(eta variance) as the step size goes to 0."""
    for eta in (1e-4, 1e-7):
        np.testing.assert_allclose(eta * ut.tail_exponent(Gaussian(-2.0, 1.0), eta), 4.0, rtol=1e-3)
    # a factor that is larger than 1 by 1e-9 half of the time, and 1 - 5e-3 otherwise
    rare = ut.tail_exponent(Table([-5.0, 1e-6]), 1e-3)
    np.testing.assert_allclose(np.exp(rare * np.log1p(1e-9)) / 2, 1, rtol=1e-5)


def test_several_directions_have_several_tail_exponents():
    law = Gaussian([0.5, -2.0, 3.0], [8.0, 0.0, 0.1])
    single = ut.tail_exponent(Gaussian(0.5, 8.0), 0.15)
    np.testing.assert_allclose(ut.tail_exponent(law, 0.15), [single, np.inf, 0.0])
    assert ut.tail_exponent([-10.0, 1.0], 0.1) == pytest.approx(np.log(2) / np.log(1.1))  # a factor of exactly 0


def test_the_tail_exponent_is_zero_or_infinite_at_the_extremes():
    assert ut.tail_exponent(two_point(1.0, 0.5), ETA) == 0
    assert ut.tail_exponent(two_point(-1.0, 0.5), ETA) == np.inf


def test_where_the_exponent_changes_sign():
    spread = transition_spread(1.0, ETA)
    np.testing.assert_allclose(spread, np.sqrt(1 + 2 / ETA))
    assert ut.lyapunov(two_point(1.0, spread + 0.01), ETA) < 0 < ut.lyapunov(two_point(1.0, spread - 0.01), ETA)
    later = transition_spread(1.0, ETA, steps=200, alpha=1e-3)
    np.testing.assert_allclose(1e-3 * np.exp(200 * ut.lyapunov(two_point(1.0, later), ETA)), 1, rtol=1e-5)


@pytest.mark.slow  # a claim measures the same quantity
def test_the_scalar_map_predicts_the_full_problem():
    """The share of runs that filter the spurious signal, at three heterogeneities."""
    for spread in (1.0, 4.0, 8.0):
        law = two_point(1.0, spread)
        sensing = ut.MatrixSensing(20, 8000, law)
        run = ut.descend(sensing, sensing.start(1e-3), step_size=ETA, steps=200, key=0, seeds=128, lane_width=128,
                         observe={"measured": sensing.measure}, progress=False)  # fmt: skip
        share = (run.observed["measured"]["spurious"][:, -1] < 0.1).mean()
        end, _ = scalar_map(law, ETA, steps=200, key=1, runs=5000)
        assert abs(share - (end < 0.1).mean()) < 0.2


def test_a_noise_floor_regenerates_a_filtered_signal():
    _, calm = scalar_map(two_point(1.0, 8.0), ETA, steps=3000, key=0, runs=300)
    _, kicked = scalar_map(two_point(1.0, 8.0), ETA, steps=3000, key=0, runs=300, floor=1e-3)
    assert (kicked > 0.5).mean() > (calm > 0.5).mean() + 0.3


def test_the_scalar_map_of_one_environment_is_a_recursion():
    """q <- q (1 + eta (s - q^2)) from above and below: the final and the largest value, the start included."""
    for alpha in (0.9, 1e-2):
        q, top = alpha, alpha**2
        for _ in range(60):
            q = q * (1 + 0.1 * (0.5 - q**2))
            top = max(top, q**2)
        end, largest = scalar_map([0.5], 0.1, steps=60, key=0, runs=2, alpha=alpha)
        np.testing.assert_allclose(end, q**2, rtol=1e-4)
        np.testing.assert_allclose(largest, top, rtol=1e-4)


def test_a_floor_adds_a_random_walk():
    """Without a signal E q^2 = alpha^2 + steps floor^2, with q so small that q^3 is negligible."""
    end, _ = scalar_map([0.0], 0.1, steps=50, key=0, runs=4000, alpha=1e-4, floor=1e-3)
    assert abs(end.mean() - 50e-6) < 5 * end.std() / np.sqrt(len(end))


def test_a_phase_diagram_without_spread_is_a_recursion():
    """q^2 converges to the mean: all runs end below a level just above it, and none below a level just below it."""
    for level, share in ((0.39, 0), (0.41, 1)):
        assert phase_diagram([0.4], [0.0], 0.1, steps=400, key=0, runs=32, level=level) == share
    first, second = phase_diagram([1.0], [3.5, 3.5], ETA, steps=200, key=0, runs=1024).ravel()
    assert first != second  # cells are independent
    assert abs(first - second) < 5 * np.sqrt(2 * 0.25 / 1024)


def test_a_phase_diagram_shows_the_transition():
    spreads = np.array([1.0, 3.5, 9.0])
    share = phase_diagram([0.5, 1.0], spreads, ETA, steps=200, key=0, runs=1000)
    assert share.shape == (3, 2)
    assert share[0, 1] == 0
    assert share[2].min() > 0.9
    assert 0.1 < share[1, 1] < 0.6


def test_the_window_of_the_paper_is_empty_up_to_a_spread_of_three_thousand():
    for spread, empty in ((8.0, True), (3070.0, True), (3080.0, False)):
        low, high = paper_window(two_point(1.0, spread))
        assert (low >= high) == empty
    np.testing.assert_allclose(paper_window(Uniform(-3.0, 5.0)), (24 / (64 / 12 / 2), 1 / (64 * 5)), rtol=1e-5)
    assert paper_window(Gaussian(0.0, 1e6))[1] == 0  # unbounded: no step size


BAD = {
    "a law of the wrong type": (lambda: ut.lyapunov({"a": 1}, ETA), "give a law"),
    "a negative step": (lambda: ut.lyapunov([1.0], -0.1), r"lyapunov\(step_size=-0.1\)`: `step_size` must be"),
    "a negative step of the tail": (lambda: ut.tail_exponent([1.0], -0.1), r"tail_exponent\(step_size=-0.1\)"),
    "a negative step of bursts": (lambda: burst_exponent([1.0], -0.1), r"burst_exponent\(step_size=-0.1\)"),
    "a NaN signal": (lambda: burst_exponent([1.0], 0.1, signal=np.nan), r"burst_exponent\(signal=nan\)"),
    "infinite values": (lambda: Table([1.0, np.inf]), "finite numbers"),
    "infinite variance": (lambda: Gaussian(0.0, np.inf), "`deviation` has inf; give finite numbers"),
    "probabilities that do not sum to one": (lambda: Table([1.0, 2.0], [0.2, 0.2]), "sum to 1"),
    "an interval with its ends swapped": (lambda: Uniform(1.0, 0.0), "must not be above"),
    "a negative deviation": (lambda: Gaussian(0.0, -1.0), "at least 0"),
    "no measurements": (lambda: ut.MatrixSensing(5, 0, [1.0]), "`m` must be at least 1"),
    "a start of zero": (lambda: ut.MatrixSensing(5, 1, [1.0]).start(0.0), "`alpha` must be"),
    "ranks above d": (lambda: ut.MatrixSensing(3, 1, [[1.0, 1.0]], rank=2), "do not fit"),
    "an unknown ensemble": (lambda: ut.MatrixSensing(3, 1, [1.0], ensemble="wishart"), 'choose "goe"'),
    "a spectrum of another length": (lambda: ut.MatrixSensing(3, 1, [1.0], rank=2, spectrum=[1.0]), "give 2 numbers"),
    "params of another size": (
        lambda: ut.descend(ut.MatrixSensing(3, 1, [1.0]), jnp.eye(4), step_size=0.1, steps=1, key=0), "with 3 rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_raises(case, as_a_user):
    call, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_signal_that_does_not_grow_on_average_is_filtered_at_any_spread():
    """(1 + eta mean)^2 <= 1: lambda = 1/2 log|(1 + eta mean)^2 - eta^2 M^2| is not positive at M = 0 already."""
    assert transition_spread(0.0, ETA) == 0
    assert transition_spread(-1.0, ETA) == 0


def test_the_scalar_map_of_several_directions_follows_the_first():
    """Constant signals 0.5 and -0.5: q^2 converges to 0.5 along the first direction, and to 0 along the second."""
    end, _ = scalar_map(Table([[0.5, -0.5]]), 0.1, steps=400, key=0, runs=2, alpha=0.1)
    np.testing.assert_allclose(end, 0.5, rtol=1e-4)
