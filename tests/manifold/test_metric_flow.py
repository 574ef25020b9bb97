"""The slow motion of optimisers with a metric: closed forms, exact laws, and runs of Adam."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow._trees import ravel
from undertow.manifold.metric_flow import CORRECTIONS, MetricMotion
from undertow.noise.base import second_moment
from undertow.papers.optimisers.models.adam_probe import draw_probe, predict_adam, run_adam
from undertow.papers.zero_loss.models import curves

C = 2.0


def motion_at(probe, corrections=(), step_size=None, optimiser=None):
    flat, unravel = jax.flatten_util.ravel_pytree(probe.start)
    optimiser = probe.adam(0.0, 0.99) if optimiser is None else optimiser
    return flat, MetricMotion(probe.noise, optimiser, step_size, 10, True, unravel, True, corrections)


def tangent(probe, flat, unravel, metric, vector):
    """Return P_S t = t - S J'(J S J')^-1 J t."""
    rows = jax.jacobian(lambda x: probe.model.problem.predictions(unravel(x)))(flat)
    return vector - metric * (rows.T @ jnp.linalg.solve(rows @ (metric[:, None] * rows.T), rows @ vector))


def curvatures(probe, x):
    """Return diag(H) of u^2 - v^2 with inputs of size 1."""
    return 4 * x**2


def test_label_noise_descends_the_trace_in_a_fixed_metric(x64):
    probe = draw_probe(jax.random.key(3))
    flat, motion = motion_at(probe)
    v = jnp.linspace(0.5, 3.0, flat.size)
    metric = 1 / jnp.sqrt(v)
    gradient = jax.grad(lambda x: jnp.sum(metric * curvatures(probe, x)))(flat)
    expected = -C / 4 * tangent(probe, flat, motion.unravel, metric, metric * gradient)
    np.testing.assert_allclose(motion.velocity(flat, v).total, expected, rtol=1e-8, atol=1e-10)


def test_with_v_in_equilibrium_adam_descends_the_trace_of_the_root(x64):
    probe = draw_probe(jax.random.key(3))
    flat, motion = motion_at(probe)
    metric = 1 / jnp.sqrt(C * curvatures(probe, flat))
    gradient = jax.grad(lambda x: jnp.sum(jnp.sqrt(curvatures(probe, x))))(flat)
    expected = -np.sqrt(C) / 2 * tangent(probe, flat, motion.unravel, metric, metric * gradient)
    np.testing.assert_allclose(motion.velocity(flat, None).total, expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(motion.v(flat, None), ravel(second_moment(probe.noise, probe.start)), rtol=1e-12)


def test_each_correction_is_switched_by_its_name_and_vanishes_with_the_step_size(x64):
    """With 1 - b2 = k eta^2 the finite step is of first order in eta; the metric lags by 1/eta memory times."""
    probe = draw_probe(jax.random.key(3))
    sizes = {}
    for eta in (1e-3, 1e-4):
        adam = probe.adam(0.0, 1 - 100 * eta**2)
        flat, motion = motion_at(probe, CORRECTIONS, jnp.asarray(eta), adam)
        velocity = motion.velocity(flat, None)
        sizes[eta] = [np.linalg.norm(velocity.finite_step), np.linalg.norm(velocity.fluctuating_metric)]
        for name, other in zip(CORRECTIONS, CORRECTIONS[::-1], strict=True):
            alone = motion_at(probe, (name,), jnp.asarray(eta), adam)[1].velocity(flat, None)
            assert np.linalg.norm(getattr(alone, name)) > 0 == np.linalg.norm(getattr(alone, other))
    np.testing.assert_allclose(np.divide(sizes[1e-3], sizes[1e-4]), 10, rtol=0.2)


def test_decay_moves_along_the_manifold(x64):
    probe, eta = draw_probe(jax.random.key(3)), jnp.asarray(1e-2)
    flat, motion = motion_at(probe, (), eta, ut.AdamW(b1=0.0, b2=0.99, eps=1e-12, weight_decay=0.03))
    velocity = motion.velocity(flat, None)
    metric = 1 / jnp.sqrt(C * curvatures(probe, flat))
    np.testing.assert_allclose(
        velocity.decay, -3 * tangent(probe, flat, motion.unravel, metric, flat), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("optimiser", [ut.RMSProp(b2=0.99), ut.SGD(momentum=0.5)], ids=["RMSProp", "momentum"])
def test_isotropic_noise_is_brownian_motion_on_the_circle(optimiser, x64):
    """The metric is 1/sigma or 1/(1 - beta), so that the angle has the variance (S sigma)^2 per unit of slow time."""
    sigma = 0.5
    rate = 1.0 if isinstance(optimiser, ut.RMSProp) else (sigma / 0.5) ** 2
    limit = ut.Limit(ut.Isotropic(curves.circle(), sigma), optimiser=optimiser)
    path = limit.solve(
        jnp.array([1.0, 0.0]), slow_time=1.0, step_size=1e-3, steps=50, num_saves=1, key=0, seeds=2000,
        observe={"x": lambda x: x[0]},
    )  # fmt: skip
    cosine = path.observed["x"][:, -1]
    assert abs(cosine.mean() - np.exp(-rate / 2)) < 4 * cosine.std() / 2000**0.5 + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("b1", "kappa"), [(0.0, 20.0), (0.0, 200.0), (0.9, 200.0)])
def test_runs_of_adam_end_where_the_flow_says(b1, kappa, x64):
    """Over a way of length 1.3 in slow time 0.3; the flow without corrections is off by 0.01, 0.26 and 0.26."""
    probe, eta = draw_probe(jax.random.key(0)), 0.004
    settings = (b1, 1 - kappa * eta**2, eta, 0.3)
    ends = run_adam(probe, *settings, 16, jax.random.key(1))
    length = np.linalg.norm(ends.mean - np.asarray(ravel(probe.start)))
    corrected, plain = (np.linalg.norm(predict_adam(probe, *settings, c) - ends.mean) for c in (True, False))
    assert corrected < 0.04 * length + 2 * ends.standard_error
    assert kappa < 100 or plain > 4 * corrected
