"""The limit of a regression with residuals, which contribute to the Hessian and to the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.manifold.losses import LOSSES, flat
from undertow.manifold.geometry import frame_at, interpolates
from undertow.manifold.minimum import frame_of_minimum

POINT = np.array([2.0, 0.5, 0.0])  # on u v = 1
DRIFT = -3.75 / 4.25 / 2 * np.array([2.0, -0.5, 0.0])  # -1/2 P (u, v), of label noise of strength 1


def products(targets):
    """Return a regression whose minimum has u v = mean of the targets, with fewer or more samples than parameters."""
    return ut.Regression(lambda p, x: p[0] * p[1] * x + 0 * p[2], jnp.ones(len(targets)), jnp.asarray(targets))


@pytest.mark.parametrize("targets", [[0.0, 2.0], [0.0, 2.0, 0.0, 2.0, 0.0, 2.0]], ids=["wide", "tall"])
def test_residuals_of_one_act_as_label_noise_of_one(targets, x64):
    """Residuals +-1 give the gradients +-(v, u), as label noise +-1 does at zero loss."""
    problem, point = products(targets), jnp.asarray(POINT)
    minibatch = ut.Limit(ut.Minibatch(problem, 1))
    np.testing.assert_allclose(minibatch.drift(point), DRIFT, atol=1e-9)
    np.testing.assert_allclose(minibatch.parts(point).normal, DRIFT, atol=1e-9)
    np.testing.assert_allclose(ut.Limit(ut.Minibatch(problem, 2)).drift(point), DRIFT / 2, atol=1e-9)
    np.testing.assert_allclose(ut.Limit(ut.LabelNoise(problem, 0.7)).drift(point), 1.49 * DRIFT, atol=1e-9)
    # u^2 - v^2 decays at the rate 1
    path = minibatch.solve(point, slow_time=1.0, num_saves=2, observe={"w": lambda p: p[0] ** 2 - p[1] ** 2})
    np.testing.assert_allclose(path.observed["w"], 3.75 * np.exp(-path.slow_time), rtol=1e-4)
    assert path.facts["motion"] == "flow"


def test_duplicate_equations_at_zero_residuals_give_the_same_limit(x64):
    """Two equal samples give dependent rows of J and the same manifold as one of them."""
    point = jnp.asarray(POINT)
    noise = ut.LabelNoise(products([1.0, 1.0]), 1.0)
    np.testing.assert_allclose(ut.Limit(noise).drift(point), DRIFT, atol=1e-9)
    path = ut.Limit(noise).solve(point, slow_time=1.0, num_saves=1, observe={"w": lambda p: p[0] ** 2 - p[1] ** 2})
    assert path.observed["w"][-1] == pytest.approx(3.75 * np.exp(-1), rel=1e-4)
    assert path.diverged_at == -1
    np.testing.assert_array_equal(ut.Limit(ut.Minibatch(products([1.0, 1.0]), 1)).drift(point), 0)


def linear_net(samples, weights=None):
    """Return W2 W1 x with two outputs at the least-squares solution of more equations than W2 W1 can fit."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(samples, 2)), rng.normal(size=(samples, 2))
    root = np.ones((samples, 1)) if weights is None else np.sqrt(weights)[:, None]
    best = np.linalg.lstsq(root * x, root * y, rcond=None)[0].T
    inner = rng.normal(size=(2, 2))
    problem = ut.Regression(lambda p, z: p["outer"] @ (p["inner"] @ z), jnp.asarray(x), jnp.asarray(y))
    params = {"inner": jnp.asarray(inner), "outer": jnp.asarray(best @ np.linalg.inv(inner))}
    return problem if weights is None else problem.reweight(jnp.asarray(weights)), params


def tanh_products():
    """Return tanh of two products on three samples: sum_i r_i f_i'' is not zero, so that the Hessian is not J'J/n."""
    x, y = jnp.array([[1.0, 0.3], [-0.4, 1.2], [0.8, 0.9]]), jnp.array([0.7, -0.2, 0.4])
    fit = lambda s: jnp.tanh(x @ s) - y
    s = jnp.array([0.3, 0.2])
    for _ in range(30):
        value = lambda s: jnp.mean(fit(s) ** 2) / 2
        s = s - jnp.linalg.solve(jax.hessian(value)(s), jax.grad(value)(s))
    problem = ut.Regression(lambda p, z: jnp.tanh(z @ (p[:2] * p[2:])), x, y)
    u = jnp.array([1.3, 0.6])
    return problem, jnp.concatenate([u, s / u])


WEIGHTS = np.array([0.1, 0.4, 0.2, 0.3])
SETTINGS = {
    "vector outputs, fewer equations than parameters": (lambda: linear_net(3), lambda t: ut.Minibatch(t, 1)),
    "more equations than parameters": (lambda: linear_net(5), lambda t: ut.Minibatch(t, 2, replace=False)),
    "reweighted": (lambda: linear_net(4, WEIGHTS), lambda t: ut.Minibatch(t, 1)),
    "label noise": (lambda: linear_net(3), lambda t: ut.LabelNoise(t, 0.7, batch_size=2)),
    "environments": (lambda: linear_net(3), lambda t: ut.Environments(t, [0, 0, 1], batch_size=1)),
    "a Hessian that is not J'J/n": (tanh_products, lambda t: ut.Minibatch(t, 1)),
    "the same with label noise": (tanh_products, lambda t: ut.LabelNoise(t, 0.7)),
}


def covariance_by_hand(noise, problem, params):
    """Return the covariance from the gradients of the samples, one at a time."""
    p = np.asarray(problem.probabilities)
    per_sample = [flat(jax.grad(problem.sample_loss)(params, (x, y))) for x, y in zip(*problem.data, strict=True)]
    g = np.asarray(per_sample)
    centred = g - p @ g
    sigma = (centred * p[:, None]).T @ centred
    if isinstance(noise, ut.Environments):
        return sigma  # environments are drawn in proportion to their samples, so that every sample is equally likely
    if not noise.replace:
        sigma *= (len(p) - noise.batch_size) / (len(p) - 1)
    if isinstance(noise, ut.LabelNoise):
        rows = np.concatenate([jax.vmap(flat)(problem.rows(params, x)) for x in problem.inputs])
        sigma = sigma + float(noise.strength) ** 2 * rows.T @ rows / len(p)
    return sigma / noise.batch_size


@pytest.mark.parametrize("name", SETTINGS)
def test_against_the_same_loss_without_its_structure(name, x64):
    make, draw = SETTINGS[name]
    problem, params = make()
    assert np.abs(problem.residuals(params)).max() > 0.05
    assert np.linalg.norm(flat(problem.gradient(params))) < 1e-12
    noise = draw(problem)
    sigma = covariance_by_hand(noise, problem, params)
    values, vectors = np.linalg.eigh(sigma)
    root = vectors * np.sqrt(np.maximum(values, 0))
    plain = ut.Problem(problem.sample_loss, problem.data)
    plain = plain if problem.weights is None else plain.reweight(problem.weights)
    columns = jax.vmap(frame_at(plain, params).unravel, in_axes=1, out_axes=-1)(jnp.asarray(root))
    expected = ut.second_derivative(plain, params, columns)
    parts = ut.Limit(noise).parts(params)
    for mine, theirs in zip(parts, expected, strict=True):
        np.testing.assert_allclose(flat(mine), flat(theirs) / 2, atol=1e-9)
    total = flat(expected.total) / 2
    assert np.linalg.norm(total) > 1e-3
    np.testing.assert_allclose(flat(ut.Limit(noise).drift(params)), total, atol=1e-9)
    derivative = ut.second_derivative(problem, params, columns)
    np.testing.assert_allclose(flat(derivative.total), flat(expected.total), atol=1e-9)


def test_phi_and_its_second_derivative_off_interpolation(x64):
    """The second derivative equals second differences of the end of gradient flow."""
    problem, point = tanh_products()
    step, h = jnp.array([0.3, -0.7, 0.5, 0.2]), 1e-2
    forward, backward = (ut.settle(problem, point + sign * h * step, tolerance=1e-12).params for sign in (1, -1))
    formula = ut.second_derivative(problem, point, step[:, None]).total
    np.testing.assert_allclose((forward + backward - 2 * point) / h**2, formula, atol=2e-3)
    pushed = jax.jvp(lambda p: ut.settle(problem, p).params, (point,), (step,))[1]
    np.testing.assert_allclose(pushed, frame_at(problem, point).project(step), atol=1e-6)


def test_residuals_off_the_manifold_of_a_fit_are_not_taken_for_noise(x64):
    """A Newton step removes the residuals of a point off the manifold of a fit, but not those of noisy labels."""
    problem, point = LOSSES["linear model"]()
    assert interpolates(problem, jax.tree.map(lambda leaf: leaf + 1e-5, point))
    assert not interpolates(products([0.0, 2.0]), jnp.asarray(POINT))
    assert not interpolates(products([1.0 - 1e-6, 1.0 + 1e-6]), jnp.asarray(POINT))
    assert interpolates(products([1.0, 1.0]), jnp.asarray(POINT))


def test_inside_jit_residuals_that_are_not_zero_give_nan(x64):
    """Inside jit the algorithm cannot depend on the residuals, and a zero would be wrong."""
    point = jnp.asarray(POINT)
    inside = lambda targets: jax.jit(lambda p: ut.Limit(ut.Minibatch(products(targets), 1)).drift(p))(point)
    assert np.isnan(inside([0.0, 2.0])).all()
    np.testing.assert_array_equal(inside([1.0, 1.0]), 0)


def test_the_parts_of_label_noise_are_half_of_the_second_derivative(x64):
    """The rows of J are given as an explicit factor, so that the general algorithm is used."""
    problem, point = LOSSES["tanh network"]()
    rows = jax.vmap(lambda x: problem.rows(point, x))(problem.inputs)
    factor = jax.tree.map(lambda leaf: 0.7 * jnp.moveaxis(leaf[:, 0], 0, -1) / problem.size**0.5, rows)
    expected = ut.second_derivative(problem, point, factor)
    limit = ut.Limit(ut.LabelNoise(problem, 0.7))
    for mine, theirs in zip(limit.parts(point), expected, strict=True):
        np.testing.assert_allclose(flat(mine), flat(theirs) / 2, atol=1e-9)
    np.testing.assert_allclose(flat(limit.drift(point)), flat(expected.total) / 2, atol=1e-9)
    slightly = limit.parts(point, finite_step=1e-9)
    np.testing.assert_allclose(flat(slightly.normal), flat(expected.normal) / 2, atol=1e-7)


def test_a_point_a_little_off_a_manifold_with_residuals(x64):
    """Newton's method reaches the manifold, and the curvatures are those of the Hessian and not of J'J/n."""
    problem, point = tanh_products()
    frame = frame_of_minimum("f", problem, point + 1e-5 * jnp.array([0.3, -0.7, 0.5, 0.2]))
    exact = np.linalg.eigvalsh(jax.hessian(problem.loss)(point))
    rows = frame_at(problem, point, least_squares=True).curvature
    assert abs(jnp.sum(rows) - exact.sum()) > 1e-2
    np.testing.assert_allclose(np.sort(frame.curvature)[-2:], exact[-2:], rtol=1e-4)
    assert int(frame.rank) == 2


def test_a_flow_does_not_depend_on_the_unit_of_the_params(x64):
    """u v = c^2 with unit label noise: u^2 - v^2 = 3.75 c^2 exp(-t) whatever c is."""
    c = 1e8
    problem = ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.ones(1), jnp.array([c**2]))
    path = ut.Limit(ut.LabelNoise(problem)).solve(
        jnp.array([2 * c, c / 2]), slow_time=1.0, num_saves=1, observe={"w": lambda p: p[0] ** 2 - p[1] ** 2}
    )
    np.testing.assert_allclose(path.observed["w"] / c**2, 3.75 * np.exp(-path.slow_time), rtol=1e-4)
