"""The second derivative of Phi, against finite differences of an independently integrated Phi and by its symmetries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

import undertow as ut
from tests.manifold.losses import LOSSES, factor, flat
from undertow.manifold.drift import Parts
from undertow.manifold.geometry import frame_at


def phi_by_scipy(problem, unravel):
    """Return the end of gradient flow by another integrator (scipy's DOP853)."""
    gradient = jax.jit(lambda x: flat(problem.gradient(unravel(x))))

    def phi(x):
        end = solve_ivp(lambda t, y: -np.asarray(gradient(y)), (0, 400), x, method="DOP853", rtol=1e-12, atol=1e-13)
        return end.y[:, -1]

    return phi


@pytest.mark.parametrize("name", LOSSES)
def test_against_finite_differences_of_another_integrator(name, x64):
    problem, point = LOSSES[name]()
    frame = frame_at(problem, point)
    assert float(jnp.min(frame.curvature[frame.active])) > 0.05
    b = factor(point, columns=1)
    direction = np.asarray(flat(jax.tree.map(lambda leaf: leaf[..., 0], b)))
    phi, x, h = phi_by_scipy(problem, frame.unravel), np.asarray(frame.point), 4e-3
    values = [phi(x + k * h * direction) for k in (-2, -1, 0, 1, 2)]
    measured = np.tensordot([-1, 16, -30, 16, -1], values, axes=1) / (12 * h**2)
    predicted = np.asarray(flat(ut.second_derivative(problem, point, b).total))
    assert np.linalg.norm(measured - predicted) <= 1e-5 * np.linalg.norm(predicted)


@pytest.mark.parametrize("name", ["linear model", "tanh network"])
def test_matrix_free_against_dense(name, x64):
    problem, point = LOSSES[name]()
    b = factor(point, columns=3)
    rows = ut.second_derivative(problem, point, b)
    full = ut.second_derivative(ut.Problem(problem.sample_loss, problem.data), point, b)
    for mine, theirs in zip(rows, full, strict=True):
        assert np.linalg.norm(flat(mine) - flat(theirs)) <= 1e-10 * np.linalg.norm(flat(theirs))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 3.0))
def test_d2phi_is_linear_in_the_covariance_and_its_parts_lie_in_their_spaces(seed, scale):
    """d2Phi is linear in BB'. The tangent part is normal to the manifold; the other two parts are tangent to it."""
    with jax.enable_x64(True):
        problem, point = LOSSES["metric"]()
        b = factor(point, columns=2, seed=seed)
        derivative = ut.second_derivative(problem, point, scale * b)
        columns = [ut.second_derivative(problem, point, b[:, k : k + 1]) for k in range(2)]
        for part, first, second in zip(derivative, *columns, strict=True):
            np.testing.assert_allclose(part, scale**2 * (first + second), rtol=1e-9, atol=1e-9)
        frame = frame_at(problem, point)
        np.testing.assert_allclose(frame.project(derivative.tangent), 0, atol=1e-9)
        np.testing.assert_allclose(frame.project(derivative.normal), derivative.normal, atol=1e-9)
        np.testing.assert_allclose(frame.project(derivative.mixed), derivative.mixed, atol=1e-9)


def test_d2phi_does_not_depend_on_a_rotation_of_the_factor(x64):
    problem, point = LOSSES["metric"]()
    b = factor(point, columns=3)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    plain, rotated = ut.second_derivative(problem, point, b), ut.second_derivative(problem, point, b @ turn)
    np.testing.assert_allclose(plain.total, rotated.total, atol=1e-10)


def test_tangent_and_mixed_parts_depend_on_the_manifold_only(x64):
    """Lemma C.7, extended: another loss with the same minimisers changes the normal part alone."""
    constraint = lambda x: x[0] ** 2 + 2 * x[1] ** 2 + jnp.sin(x[2]) - 1
    plain = ut.Problem(lambda x, _: constraint(x) ** 2 / 2, jnp.zeros(1))
    weighted = ut.Problem(lambda x, _: jnp.exp(x[0] + 0.5 * x[2]) * constraint(x) ** 2, jnp.zeros(1))
    point = ut.settle(plain, jnp.array([0.5, 0.5, 0.1]), tolerance=1e-12).params
    b = factor(point)
    first, second = ut.second_derivative(plain, point, b), ut.second_derivative(weighted, point, b)
    np.testing.assert_allclose(first.tangent, second.tangent, atol=1e-9)
    np.testing.assert_allclose(first.mixed, second.mixed, atol=1e-9)
    assert np.linalg.norm(first.normal - second.normal) > 0.05


def test_label_noise_drift_is_a_quarter_of_the_gradient_of_the_trace(x64):
    for name in ("linear model", "tanh network"):
        problem, point = LOSSES[name]()
        frame = frame_at(problem, point)
        trace = lambda x, task=problem, f=frame: jnp.trace(jax.hessian(lambda y: task.loss(f.unravel(y)))(x))
        against = np.asarray(frame.project(jax.grad(trace)(frame.point)))
        drift = np.asarray(flat(ut.Limit(ut.LabelNoise(problem, 0.7)).drift(point)))
        coefficient = drift @ against / (against @ against) / 0.49
        assert abs(coefficient + 0.25) < 1e-5
        np.testing.assert_allclose(drift, -0.25 * 0.49 * against, atol=1e-6 * np.linalg.norm(against))


def test_the_drift_of_isotropic_noise(x64):
    """Normal part -1/4 P grad ln |H|_+, tangent part -1/2 H^+ d3L[P], against the general formula by columns."""
    for name in LOSSES:
        problem, point = LOSSES[name]()
        frame = frame_at(problem, point)
        parts = ut.Limit(ut.Isotropic(problem, 0.6)).parts(point)
        eye = jax.vmap(frame.unravel, in_axes=1, out_axes=-1)(0.6 * jnp.eye(frame.point.size))
        by_columns = ut.second_derivative(problem, point, eye)
        for mine, theirs in zip(parts, by_columns, strict=True):
            np.testing.assert_allclose(flat(mine), flat(theirs) / 2, atol=1e-9)
        rank = int(frame.rank)
        volume = jax.jit(lambda x, t=problem, f=frame, r=rank: frame_at(t, f.unravel(x), rank=r).log_determinant())
        step = 1e-5
        gradient = np.array([
            (volume(frame.point.at[i].add(step)) - volume(frame.point.at[i].add(-step))) / (2 * step)
            for i in range(frame.point.size)
        ])  # fmt: skip
        against = np.asarray(frame.project(jnp.asarray(gradient)))
        coefficient = np.asarray(flat(parts.normal)) @ against / (against @ against) / 0.36
        assert abs(coefficient + 0.25) < 1e-5


def test_the_parts_print_and_plot_their_norms():
    parts = Parts(*({"a": jnp.array([3.0 * k, 0.0]), "b": jnp.array(4.0 * k)} for k in (1, 2, 3)))
    lines = str(parts).splitlines()
    assert lines[1].split() == ["part", "norm", "a", "b", "meaning"]
    assert [line.split()[:4] for line in lines[2:]] == [
        ["tangent", "5", "3", "4"], ["normal", "10", "6", "8"], ["mixed", "15", "9", "12"], ["total", "30", "18", "24"],
    ]  # fmt: skip
    assert "tangent" in parts._repr_html_()
    axes = parts.plot()
    assert [[bar.get_height() for bar in group] for group in axes.containers] == [[3, 4], [6, 8], [9, 12]]
    printed = []
    jax.jit(lambda x: printed.append(str(Parts(x, x, x))))(jnp.zeros(2))
    assert printed[0].startswith("Parts(")
