"""The examples with closed forms: their minimisers, their curvature, and the drift of their limiting diffusions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.papers.zero_loss.models import curves


@pytest.mark.parametrize("angle", [0.3, 2.0])
def test_the_circle_has_curvature_one_across_and_none_along(x64, angle):
    point = jnp.array([np.cos(angle), np.sin(angle)])
    normal, tangent = point, jnp.array([-point[1], point[0]])
    hessian = jax.hessian(curves.circle().loss)(point)
    np.testing.assert_allclose(hessian @ normal, normal, atol=1e-12)
    np.testing.assert_allclose(hessian @ tangent, 0, atol=1e-12)


def test_the_ellipse_consists_of_minimisers(x64):
    for angle in np.linspace(0, 2 * np.pi, 7):
        point = jnp.array([2 * np.cos(angle), np.sin(angle)])
        assert curves.ellipse().loss(point) < 1e-30


@pytest.mark.parametrize("rho", [-0.5, 0.3])
def test_mixed_noise_rotates_the_circle_at_minus_rho(x64, rho):
    point = jnp.array([0.6, 0.8])
    drift = ut.Limit(curves.mixed_circle(rho)).drift(point)
    tangent = jnp.array([-point[1], point[0]])
    np.testing.assert_allclose(drift @ tangent, -rho, rtol=1e-6)


@pytest.mark.parametrize("phases", [3, 5])
def test_the_motor_rotates_at_an_eighth_of_its_phases(x64, phases):
    """Lemma C.8 with its constant corrected, at several angles."""
    limit = ut.Limit(curves.motor(phases))
    for angle in (0.0, 0.4):
        point = jnp.zeros(phases + 2).at[0].set(np.cos(angle)).at[1].set(np.sin(angle))
        drift = limit.drift(point)
        np.testing.assert_allclose(drift[1] * np.cos(angle) - drift[0] * np.sin(angle), phases / 8, rtol=1e-6)
        np.testing.assert_allclose(curves.motor_angle(point), angle, atol=1e-12)


def test_the_metric_has_two_constraints_in_five_dimensions(x64):
    problem = curves.metric()
    point = ut.settle(problem, jnp.array([0.6, 0.7, 0.2, 0.3, 0.4])).params
    assert problem.loss(point) < 1e-20
    values = np.linalg.eigvalsh(jax.hessian(problem.loss)(point))
    assert np.sum(values > 1e-6) == 2
    assert np.all(np.abs(values[:3]) < 1e-6)
