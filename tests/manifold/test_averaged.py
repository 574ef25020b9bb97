"""The averaged flow: its velocity against derivatives of dense matrices, its order, and its observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.dense import jacobians
from undertow.manifold.averaged import solve_average, velocity
from undertow.manifold.fluctuations import fluctuations

identity = lambda x: x


def network(samples, hidden=4):
    """Return a tanh network as a regression on flat params: in the image of J' for few samples."""
    rng = np.random.default_rng(1)
    inputs, targets = jnp.asarray(rng.normal(size=(samples, 2))), jnp.asarray(rng.normal(size=samples))
    params = jnp.asarray(rng.normal(size=3 * hidden))
    predict = lambda w, x: w[2 * hidden :] @ jnp.tanh(w[: 2 * hidden].reshape(hidden, 2) @ x)
    return ut.Regression(predict, inputs, targets), params


def solve(noise, params, eta, time, closure="averaged_noise", observe=None, saves=4, tolerance=1e-9):
    times = jnp.linspace(0.0, time, saves + 1)
    arguments = (times, jnp.asarray(eta), observe or {}, closure, jnp.asarray(tolerance), 10_000)
    return solve_average(noise, params, *arguments)


def test_small_steps_with_label_noise_descend_the_regularised_loss(x64):
    """The velocity is -grad(L + (eta c/4) tr J'J/n) in the image of J'."""
    task, params = network(5)
    eta, strength = 0.03, 0.7

    def regularised(w):
        rows = jax.vmap(jax.grad(task.predict), in_axes=(None, 0))(w, task.inputs)
        return task.loss(w) + eta * strength**2 / 4 * jnp.sum(rows**2) / task.size

    age = jnp.asarray(1e8)
    found = velocity(ut.LabelNoise(task, strength), params, identity, age, jnp.asarray(eta), "small_step")
    np.testing.assert_allclose(found, -jax.grad(regularised)(params), rtol=1e-6, atol=1e-9)


def test_small_steps_with_isotropic_noise_push_towards_less_curvature(x64):
    """X = H^-1/2 for the variance 1, so that the mean step is -grad(L + (eta/4) log det H) at a minimum."""
    task = ut.Problem(lambda w, _: (2 + w[0]) * w[1] ** 2 + w[0] ** 2 / 2 + w[0] * w[1] / 4, jnp.zeros(1))
    point, eta = jnp.zeros(2), 0.03
    found = velocity(ut.Isotropic(task, 1.0), point, identity, jnp.asarray(1e8), jnp.asarray(eta), "small_step")
    entropy = jax.grad(lambda w: jnp.linalg.slogdet(jax.hessian(task.loss)(w))[1])(point)
    np.testing.assert_allclose(found, -eta / 4 * entropy, atol=1e-10)


@pytest.mark.parametrize("closure", ["finite_step", "averaged_noise"])
def test_the_velocity_equals_its_formula_with_dense_derivatives(closure, x64):
    """(1 + (eta/2) H)(-grad L - (eta/2) d3L[X]), with the third derivatives as an array."""
    task, params = network(5)
    noise, eta, age = ut.Minibatch(task, 1), jnp.asarray(0.05), jnp.asarray(7.0)
    around = fluctuations(noise, params, identity, age, eta, closure)
    x = around.expect(lambda u, v: jnp.outer(u, v))
    third = jax.jacfwd(jax.hessian(task.loss))(params)
    force = -jax.grad(task.loss)(params) - eta / 2 * jnp.einsum("aij,ij->a", third, x)
    expected = force + eta / 2 * jax.hessian(task.loss)(params) @ force
    np.testing.assert_allclose(velocity(noise, params, identity, age, eta, closure), expected, atol=1e-10)


def test_without_noise_the_flow_passes_the_points_of_gradient_descent(x64):
    """The distance to the discrete steps falls with the square of the step size."""
    task, params = network(5)
    noise = ut.Minibatch(task, task.size, replace=False)
    gradient = jax.jit(jax.grad(task.loss))
    errors = []
    for eta in (0.1, 0.05, 0.025):
        point = params
        for _ in range(round(1 / eta)):
            point = point - eta * gradient(point)
        errors.append(float(jnp.linalg.norm(solve(noise, params, eta, 1.0).points[-1] - point)))
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 2, atol=0.3)


@pytest.mark.parametrize("samples", [5, 20])
def test_the_solution_does_not_depend_on_the_tolerance(samples, x64):
    task, params = network(samples)
    noise = ut.LabelNoise(task, 0.5)
    fine, coarse = (solve(noise, params, 0.05, 20.0, tolerance=t) for t in (1e-9, 1e-5))
    moved = float(jnp.linalg.norm(fine.points[-1] - fine.points[0]))
    np.testing.assert_allclose(coarse.points, fine.points, atol=1e-3 * moved)
    assert int(coarse.steps) < int(fine.steps)


def test_the_mean_loss_of_linear_least_squares_is_exact(x64):
    """L(mean) + (eta/2) tr(H X) after relaxation, against the exact moments of w+ = w - eta x (x w - y)."""
    x, y, eta = jnp.array([1.0, 2.0, -0.5]), jnp.array([1.0, 1.0, 1.0]), 0.1
    task = ut.Regression(lambda w, z: w[0] * z, x, y)
    path = solve(ut.Minibatch(task, 1), jnp.array([0.3]), eta, 100.0, observe={"square": lambda w: w[0] ** 2})
    mean, square = 0.3, 0.09
    for _ in range(1000):
        a, c = 1 - eta * x**2, eta * x * y
        mean, square = jnp.mean(a * mean + c), jnp.mean(a**2 * square + 2 * a * c * mean + c**2)
    np.testing.assert_allclose(path.points[-1, 0], mean, rtol=1e-7)
    np.testing.assert_allclose(path.observed["mean_square"][-1], square, rtol=1e-6)
    np.testing.assert_allclose(path.observed["mean_square"][0], 0.09)  # all runs start at one point
    loss = jnp.mean(x**2 * square - 2 * x * y * mean + y**2) / 2
    np.testing.assert_allclose(path.observed["mean_loss"][-1], loss, rtol=1e-6)


def test_observables_may_be_trees_of_any_type(x64):
    task, params = network(5)
    observe = {"many": lambda w: {"count": jnp.sum(w > 0), "sign": w[0] > 0, "vector": w[:2], "plain": 3}}
    path = solve(ut.LabelNoise(task, 0.5), params, 0.05, 1.0, observe=observe)
    assert path.observed["many"]["vector"].shape == (5, 2)
    assert path.observed["many"]["count"].dtype == jnp.int64
    excess = path.observed["excess_many"]
    for name in ("count", "sign", "plain", "vector"):
        np.testing.assert_array_equal(excess[name], 0)  # linear functions and counts have no second derivative
        np.testing.assert_array_equal(path.observed["mean_many"][name], path.observed["many"][name])


def test_the_records_have_the_curvatures_and_the_spread(x64):
    task, params = network(5)
    path = solve(ut.LabelNoise(task, 0.5), params, 0.05, 5.0)
    rows = jacobians(task, path.points[-1]).reshape(5, -1)
    sharpness = np.linalg.norm(rows, 2) ** 2 / 5
    assert float(path.records.sharpness[-1]) == pytest.approx(sharpness)
    around = fluctuations(
        ut.LabelNoise(task, 0.5), path.points[-1], identity, jnp.asarray(5.0), jnp.asarray(0.05), "averaged_noise"
    )
    x = np.asarray(around.expect(lambda u, v: jnp.outer(u, v)))
    assert float(path.records.spread[-1]) == pytest.approx(np.sqrt(0.05 * np.trace(x)))
    assert (path.records.slow_spread <= path.records.spread).all()


def test_points_after_a_failure_are_not_finite(x64):
    """d w/dt = w^2 from 1 reaches infinity at the time 1."""
    task = ut.Problem(lambda w, _: -(w[0] ** 3) / 3, jnp.zeros(1))
    path = solve(ut.Isotropic(task, 1e-3), jnp.ones(1), 1e-3, 2.0, "small_step")
    finite = np.isfinite(path.points[:, 0])
    assert finite[0]
    assert not finite[-1]
