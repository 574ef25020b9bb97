"""The Rosenbrock-W method: order 3 with any Jacobian, damping of stiff components, rejection of steps."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undertow._stiff import EMBEDDED, WEIGHTS, RosenbrockW, along_eigenvectors


def potential(y):
    return y[0] ** 4 / 4 + y[0] ** 2 * y[1] / 2 + y[1] ** 2


def flow(t, y, args):
    """A nonlinear gradient flow with a force that depends on time."""
    return -jax.grad(potential)(y) + jnp.stack([jnp.sin(2 * t), jnp.cos(3 * t)])


def exact(y):
    curvature, vectors = jnp.linalg.eigh(jax.hessian(potential)(y))
    return along_eigenvectors(vectors, curvature)


def absent(y):
    return along_eigenvectors(jnp.eye(2), jnp.zeros(2))


def wrong(y):
    return along_eigenvectors(jnp.array([[0.6], [0.8]]), jnp.array([5.0]))


def end(solver, dt, start, length=1.0, field=flow):
    steps = diffrax.diffeqsolve(diffrax.ODETerm(field), solver, 0.0, length, dt, start, max_steps=100_000)
    assert steps.ys is not None
    return np.asarray(steps.ys[0])


@pytest.mark.parametrize("linearise", [exact, absent, wrong])
def test_the_order_is_three_with_any_jacobian(linearise, x64):
    start = jnp.array([1.0, -0.5])
    reference = end(diffrax.Dopri8(), 1e-3, start)
    errors = [np.linalg.norm(end(RosenbrockW(linearise), 1 / n, start) - reference) for n in (32, 64, 128)]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    np.testing.assert_allclose(orders, 3, atol=0.35)
    assert errors[-1] < 1e-5


def test_the_embedded_method_has_order_two(x64):
    """The error estimate of one step is of the third order in the step."""
    start = jnp.array([1.0, -0.5])
    term = diffrax.ODETerm(flow)
    sizes = []
    for dt in (0.02, 0.01, 0.005):
        _, error, *_ = RosenbrockW(exact).step(term, 0.0, dt, start, None, None, False)
        sizes.append(np.linalg.norm(error))
    np.testing.assert_allclose(np.log2(np.divide(sizes[:-1], sizes[1:])), 3, atol=0.2)
    assert sum(WEIGHTS) == pytest.approx(1)
    assert sum(EMBEDDED) == pytest.approx(1)


def test_the_method_is_l_stable(x64):
    """One step multiplies a component of the rate s by R(-s dt), which is at most 1 and tends to zero."""
    rates = jnp.logspace(-3, 8, 45)
    field = diffrax.ODETerm(lambda t, y, args: -rates * y)
    solver = RosenbrockW(lambda y: along_eigenvectors(jnp.eye(45), rates))
    factor = np.asarray(solver.step(field, 0.0, 1.0, jnp.ones(45), None, None, False)[0])
    assert (np.abs(factor) <= 1).all()
    assert np.abs(factor[-1]) < 1e-6
    slow = np.asarray(rates) <= 0.1
    np.testing.assert_allclose(factor[slow], np.exp(-np.asarray(rates)[slow]), rtol=1e-4)


def test_a_stiff_component_follows_its_equilibrium(x64):
    """y' = -s (y - cos t) with s = 1e6 and steps of 0.1: no trace of the fast time scale."""
    rate = jnp.array([1e6])
    solver = RosenbrockW(lambda y: along_eigenvectors(jnp.eye(1), rate))
    last = end(solver, 0.1, jnp.ones(1), 2.0, lambda t, y, args: -rate * (y - jnp.cos(t)))
    np.testing.assert_allclose(last, np.cos(2.0), atol=1e-4)


def test_functions_of_the_linearisation_equal_those_of_the_matrix(x64):
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 3)))[0]
    rates = np.array([0.5, 2.0, -1.0])
    matrix = vectors @ np.diag([0.5, 2.0, 0.0]) @ vectors.T  # a negative rate counts as zero
    vector = np.arange(5.0)
    apply = along_eigenvectors(jnp.asarray(vectors), jnp.asarray(rates))
    np.testing.assert_allclose(apply(jnp.negative, jnp.asarray(vector)), -matrix @ vector, atol=1e-12)
    solved = apply(lambda rate: 1 / (1 + rate), jnp.asarray(vector))
    np.testing.assert_allclose(solved, np.linalg.solve(np.eye(5) + matrix, vector), atol=1e-12)


def test_a_step_out_of_the_domain_is_rejected(x64):
    """y' = -sqrt(y - 1), y = 1 + (1 - t/2)^2: the first step of length 10 leaves the domain."""
    term = diffrax.ODETerm(lambda t, y, args: -jnp.sqrt(y - 1))
    solver = RosenbrockW(lambda y: along_eigenvectors(jnp.eye(1), jnp.zeros(1)))
    controller = diffrax.PIDController(1e-8, 1e-8)
    path = diffrax.diffeqsolve(term, solver, 0.0, 1.5, 10.0, jnp.array([2.0]), stepsize_controller=controller)
    assert path.ys is not None
    np.testing.assert_allclose(path.ys[0], 1 + 0.25**2, rtol=1e-6)
    error = solver.step(term, 0.0, 10.0, jnp.array([2.0]), None, None, False)[1]
    assert np.isinf(error).all()
