"""The frame of the manifold: matrix-free against dense, and the equations it solves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.manifold.losses import LOSSES, flat
from undertow.manifold.geometry import frame_at


def dense(problem):
    """Return the same problem without its least-squares structure."""
    return ut.Problem(problem.sample_loss, problem.data)


@pytest.mark.parametrize("name", ["linear model", "tanh network"])
def test_matrix_free_against_dense(name, x64):
    problem, point = LOSSES[name]()
    rows, full = frame_at(problem, point), frame_at(dense(problem), point)
    v = jax.random.normal(jax.random.key(0), rows.point.shape, jnp.float64)
    assert int(rows.rank) == int(full.rank) == problem.size
    np.testing.assert_allclose(rows.project(v), full.project(v), atol=1e-9)
    np.testing.assert_allclose(rows.pseudo_inverse(v), full.pseudo_inverse(v), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(rows.log_determinant(), full.log_determinant(), rtol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_the_frame_against_the_dense_hessian(name, x64):
    problem, point = LOSSES[name]()
    frame = frame_at(problem, point)
    hessian = np.asarray(jax.hessian(lambda x: problem.loss(frame.unravel(x)))(frame.point))
    eye = np.eye(len(hessian))
    projector = np.asarray(frame.project(jnp.asarray(eye)))
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-10)
    np.testing.assert_allclose(hessian @ projector, 0, atol=1e-7)
    np.testing.assert_allclose(np.asarray(frame.pseudo_inverse(jnp.asarray(hessian))), eye - projector, atol=1e-6)
    values = np.linalg.eigvalsh(hessian)
    np.testing.assert_allclose(frame.log_determinant(), np.log(values[values > 1e-6]).sum(), rtol=1e-6)


@pytest.mark.parametrize("eta", [0.0, 0.3])
@pytest.mark.parametrize("name", LOSSES)
def test_solutions_satisfy_the_lyapunov_equation(name, eta, x64):
    problem, point = LOSSES[name]()
    frame = frame_at(problem, point)
    b = np.random.default_rng(0).normal(size=(frame.normal.shape[1], 3)) * np.asarray(frame.active)[:, None]
    x = np.asarray(frame.lyapunov(jnp.asarray(b @ b.T), eta))
    h = np.diag(np.asarray(frame.curvature))
    np.testing.assert_allclose(h @ x + x @ h - eta * h @ x @ h, b @ b.T, atol=1e-10)


def test_the_projector_is_the_derivative_of_phi(x64):
    for name in LOSSES:
        problem, point = LOSSES[name]()
        frame = frame_at(problem, point)
        v = frame.unravel(jax.random.normal(jax.random.key(5), frame.point.shape, jnp.float64))
        pushed = jax.jvp(lambda p, task=problem: ut.settle(task, p).params, (point,), (v,))[1]
        np.testing.assert_allclose(flat(pushed), frame.project(flat(v)), atol=1e-6)


def test_the_derivative_of_phi_off_the_manifold(x64):
    problem, point = LOSSES["metric"]()
    off = point + 0.05 * jax.random.normal(jax.random.key(1), point.shape, jnp.float64)
    v = jax.random.normal(jax.random.key(2), point.shape, jnp.float64)
    settle = lambda x: ut.settle(problem, x, tolerance=1e-11).params
    pushed = jax.jvp(settle, (off,), (v,))[1]
    differences = (settle(off + 1e-4 * v) - settle(off - 1e-4 * v)) / 2e-4
    np.testing.assert_allclose(pushed, differences, rtol=1e-4, atol=1e-4 * float(jnp.linalg.norm(differences)))
