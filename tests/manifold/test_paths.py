"""Solutions on the manifold: exact flows, tolerances, and the checks of a recorder."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.manifold import paths
from undertow.manifold.geometry import frame_at
from undertow.manifold.paths import FLATTEST, FLATTEST_OF_FLOW, Recorder, RetractedTsit5, flow

HYPERBOLA = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.array([1.0]), jnp.array([1.0]))


def recorder(point, observe=None):
    frame = frame_at(HYPERBOLA, point)
    return frame, Recorder(observe or {}, HYPERBOLA, jnp.max(frame.curvature), 1, True, frame.unravel)


def solved(tolerance, gaps=(0.5, 0.25, 0.25)):
    """Return the flow of label noise c = 1 on u v = 1, from u = 2."""
    frame, record = recorder(jnp.array([2.0, 0.5]), {"p": lambda p: p})
    noise = ut.LabelNoise(HYPERBOLA, 1.0)
    return flow(noise, frame, jnp.asarray(gaps), 0.0, record, jnp.asarray(tolerance))


def ode(time, steps=4000):
    """Return the same flow by classical Runge-Kutta steps in u alone, with v = 1/u."""
    limit = ut.Limit(ut.LabelNoise(HYPERBOLA, 1.0))
    amount = -float(limit.drift(jnp.array([2.0, 0.5]))[0])
    # drift of u on the hyperbola: -(c/4) (P grad tr H)_u, (P grad)_u = 2 u (u^2 - v^2)/(u^2 + v^2)
    shape = lambda u: u * (u**2 - u**-2) / (u**2 + u**-2)
    c = amount / shape(2.0)
    u, h = 2.0, time / steps
    for _ in range(steps):
        k1 = -c * shape(u)
        k2 = -c * shape(u + h / 2 * k1)
        k3 = -c * shape(u + h / 2 * k2)
        k4 = -c * shape(u + h * k3)
        u += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return u


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-9])
def test_the_error_of_the_flow_follows_its_tolerance(x64, tolerance):
    end, records, lost = solved(tolerance)
    assert np.isinf(float(lost))
    assert abs(float(end[0]) - ode(1.0)) < 20 * tolerance
    np.testing.assert_allclose(end[0] * end[1], 1.0, atol=1e-10)
    assert records["p"].shape == (4, 2)
    np.testing.assert_allclose(records["p"][0], [2.0, 0.5], atol=1e-12)
    np.testing.assert_array_equal(records["p"][-1], end)


def test_the_number_of_saves_does_not_change_the_end(x64):
    np.testing.assert_allclose(solved(1e-9)[0], solved(1e-9, (1.0,))[0], atol=1e-8)


def test_a_trial_step_that_leaves_the_domain_of_the_drift_is_repeated_with_a_shorter_one(x64):
    """y' = -sqrt(y) from 1 is (1 - t/2)^2; the first trial step, to t = 1.9, has stages at negative y."""
    end = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -jnp.sqrt(y)), RetractedTsit5(back=lambda y: y), 0.0, 1.9, 1.9,
        jnp.ones(1), stepsize_controller=diffrax.PIDController(1e-6, 1e-6), adjoint=diffrax.ForwardMode(),
    ).ys  # fmt: skip
    np.testing.assert_allclose(end, 0.05**2, atol=1e-6)


def test_a_recorder_measures_the_distance_to_the_manifold(x64):
    """At (u, v) with u v = 1 + r the distance is |r|/|(v, u)| to first order."""
    point = jnp.array([2.0, 0.5 + 1e-5])
    _, record = recorder(jnp.array([2.0, 0.5]))
    values, valid = record(point, FLATTEST)
    np.testing.assert_allclose(values["distance"], 2e-5 / np.hypot(2.0, 0.5), rtol=1e-3)
    assert bool(valid)


@pytest.mark.parametrize("flattest", [FLATTEST, FLATTEST_OF_FLOW])
def test_a_recorder_detects_lost_rank_and_points_off_the_manifold(x64, flattest):
    _, record = recorder(jnp.array([2.0, 0.5]))
    assert bool(record(jnp.array([1.0, 1.0]), flattest)[1])
    assert not bool(record(jnp.array([0.0, 0.0]), flattest)[1])
    assert not bool(record(jnp.array([2.0, 0.6]), flattest)[1])


@pytest.mark.parametrize(("dtype", "holds"), [(jnp.float64, (False, True)), (jnp.float32, (True, False))])
def test_the_least_curvature_depends_on_the_precision(x64, dtype, holds):
    """The first of the two limits is that of double precision; the curvature is 1e-3 of the one at the start."""
    valley = ut.Problem(lambda p, k: k * p[0] ** 2 / 2 + 0 * p[1], jnp.ones(1, dtype))
    frame = frame_at(valley, jnp.zeros(2, dtype))
    record = Recorder({}, valley, 1e3 * jnp.max(frame.curvature), 1, False, frame.unravel)
    for limits, expected in zip(((1e-2, 1e-5), (1e-5, 1e-2)), holds, strict=True):
        assert bool(record.holds(frame, limits)) == expected


@pytest.mark.parametrize(("allowed", "lost"), [(10, np.inf), (4, 0.4)])
def test_a_diffusion_that_needs_more_steps_than_allowed_ends_early(monkeypatch, x64, allowed, lost):
    """Ten steps of length 0.1 are needed; with four of them allowed the path ends at time 0.4."""
    monkeypatch.setattr(paths, "MOST_STEPS", allowed - 10)
    valley = ut.Problem(lambda p, k: k * p[0] ** 2 / 2 + 0 * p[1], jnp.ones(1))
    frame = frame_at(valley, jnp.zeros(2))
    record = Recorder({}, valley, jnp.max(frame.curvature), 1, False, frame.unravel)
    noise = ut.Isotropic(valley, 1.0)
    chart = paths.PlainChart(noise, 0.0, record)
    *_, end = paths._diffuse(chart, frame.point, None, jax.random.key(0), jnp.ones(1), record, 10)
    np.testing.assert_allclose(end, lost)


def test_small_points_and_zero_targets_have_an_absolute_tolerance(x64):
    """A distance of 1e-3 is within a hundredth of 1 + |params|, at the origin and without any target."""
    line = ut.Regression(lambda p, x: p[1] * x + 0 * p[0], jnp.array([1.0]), jnp.array([0.0]))
    valley = ut.Problem(lambda p, x: p[1] ** 2 * x / 2 + 0 * p[0], jnp.array([1.0]))
    for problem, least_squares in ((line, True), (valley, False)):
        frame = frame_at(problem, jnp.zeros(2), least_squares=least_squares)
        record = Recorder({}, problem, jnp.max(frame.curvature), 1, least_squares, frame.unravel)
        for distance, valid in ((1e-3, True), (0.1, False)):
            assert bool(record(jnp.array([0.0, distance]), FLATTEST)[1]) == valid
