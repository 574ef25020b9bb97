"""Fluctuations under RMSProp: stationary equations, moments of noises against enumeration, and a run."""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow import _trees as trees
from undertow.papers.optimisers.models.rank_one import BALANCE, rank_one
from undertow.symmetry.fluctuations import DRAWS, _metric, fluctuations, higher_cumulants, leading_entries

ETA = 0.01


@pytest.fixture
def system(x64):
    problem, start = rank_one(jax.random.key(0), samples=32)
    return ut.Minibatch(problem, 1), BALANCE.orbit(start, -0.4)


def dense(noise, params):
    """Return per-sample gradients, Sigma, E g^2 and H, flat."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    gradients = np.asarray(jax.vmap(trees.ravel)(noise.problem.sample_gradients(params)))
    centred = gradients - gradients.mean(axis=0)
    hessian = np.asarray(jax.hessian(lambda x: noise.problem.loss(unravel(x)))(flat))
    return gradients, centred.T @ centred / len(centred), (gradients**2).mean(axis=0), hessian


@pytest.mark.parametrize("optimiser", [ut.RMSProp(b2=0.999), ut.RMSProp(b2=0.999, eps=0.3)], ids=["plain", "eps"])
def test_the_covariance_is_stationary(system, optimiser):
    """X = (1 - eta S H) X (1 - eta S H)' + eta^2 S Sigma S: exactly, because no noise is along the orbit."""
    noise, params = system
    found = fluctuations(noise, params, optimiser, jnp.asarray(ETA))
    _, sigma, second, hessian = dense(noise, params)
    s = 1 / (np.sqrt(second) + optimiser.eps)
    x = np.asarray(found.factor @ found.factor.T)
    step = np.eye(7) - ETA * s[:, None] * hessian
    np.testing.assert_allclose(step @ x @ step.T + ETA**2 * s[:, None] * sigma * s, x, atol=1e-10 * np.abs(x).max())
    curvatures = np.linalg.eigvalsh(np.sqrt(s)[:, None] * hessian * np.sqrt(s))
    np.testing.assert_allclose(found.slowest, curvatures[1], rtol=1e-8)
    assert found.downward == 0


def test_the_memory_of_v_is_stationary(system):
    """The metric term is E[theta^2 Delta(1/S)]/2 with c = E[x v] from a linear recursion that is iterated here."""
    noise, params = system
    b2 = 0.99
    found = fluctuations(noise, params, ut.RMSProp(b2=b2, eps=0.0), jnp.asarray(ETA))
    gradients, _, second, hessian = dense(noise, params)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    slopes = jax.jacfwd(lambda t: jnp.mean(jax.vmap(trees.ravel)(noise.problem.sample_gradients(unravel(t))) ** 2, 0))
    slope, s, k = np.asarray(slopes(flat)), 1 / np.sqrt(second), 1 - b2
    x, step = np.asarray(found.factor @ found.factor.T), np.eye(7) - ETA * s[:, None] * hessian
    third = (gradients**2).T @ (gradients - gradients.mean(axis=0)) / len(gradients)
    c = np.zeros((7, 7))  # column i is E[x v_i]
    for _ in range(4000):
        c = b2 * step @ c + k * (step @ x @ slope.T - ETA * s[:, None] * third.T)
    expected = k * np.asarray(flat) * s / 2 * np.diag(x @ slope.T - c)
    np.testing.assert_allclose(found.entries.metric, expected, rtol=1e-7, atol=1e-14)


def test_without_fluctuations_the_terms_are_the_leading_ones(system):
    """The corrections fall in proportion to the step size and to 1 - b2."""
    noise, params = system
    second = jax.tree.map(lambda s, g: s + g**2, noise.covariance(params).moment(lambda g: jax.tree.map(jnp.square, g)),
                          noise.mean(params))  # fmt: skip
    sizes = []
    for eta in (1e-3, 1e-4):
        optimiser = ut.AdamW(b1=0.5, b2=1 - eta**2, weight_decay=eta)
        found = fluctuations(noise, params, optimiser, jnp.asarray(eta)).entries
        lead = leading_entries(noise, params, optimiser, second)
        sizes.append([np.abs(a - b).max() for a, b in zip(found[:2], lead[:2], strict=True)])
    np.testing.assert_allclose(np.array(sizes[0]) / np.array(sizes[1]), 10, rtol=0.05)


def test_mean_and_spread_of_a_run(system):
    """The excess loss and the offset of the product U W' from the minimiser, against 256 runs of RMSProp."""
    noise, params = system
    eta, optimiser = 0.02, ut.RMSProp(b2=0.9999)
    end = ut.equilibrium(noise, params, BALANCE, step_size=eta, optimiser=optimiser)
    product = lambda p: p["U"][:, None] * p["W"][None]
    second = jax.tree.map(lambda s: s, noise.covariance(end.params).moment(lambda g: jax.tree.map(jnp.square, g)))
    observe = {"loss": noise.problem.loss, "product": product}
    run = ut.descend(
        noise, end.params, optimiser=optimiser, optimiser_state={"v": second}, step_size=eta, steps=6000, every=300,
        observe=observe, seeds=256, key=0, progress=False,
    )  # fmt: skip
    for name, function in observe.items():
        values = run.observed[name][:, 5:].mean(axis=1)
        mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / 16
        excess = np.asarray(end.expected(function)) - np.asarray(function(end.params))
        away = mean - np.asarray(function(end.params)) - excess
        assert np.all(np.abs(away) < 4 * error + 0.1 * np.abs(excess).max()), name
    assert excess.size == 10
    loss = run.observed["loss"][:, 5:].mean()
    assert loss - noise.problem.loss(end.params) > 0.005  # the excess is what is predicted, and it is not small


@dataclass
class Scaled:
    """An observable that has no hash and can change."""

    factor: float

    def __call__(self, params):
        return self.factor * params["u"] ** 2


def test_a_mean_in_a_long_run_uses_the_present_observable():
    product = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
    balance = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
    params = {"u": jnp.array(4.0), "w": jnp.array(0.25)}
    end = ut.equilibrium(ut.Minibatch(product, 1), params, balance, step_size=0.01, optimiser=ut.Adam())
    observable = Scaled(1.0)
    before = end.expected(observable)
    observable.factor = 10.0
    np.testing.assert_allclose(end.expected(observable), 10 * before, rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("replace", [True, False])
def test_cumulants_of_batches_are_those_of_all_batches(x64, batch, replace):
    points = jnp.array([[0.0, 1.0], [2.0, -1.0], [5.0, 0.5], [-1.0, 3.0], [0.3, 0.2]])
    problem = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2) / 2, points)
    params = jnp.array([0.5, 0.1])
    third, fourth = higher_cumulants(ut.Minibatch(problem, batch, replace=replace), params)
    all_batches = itertools.product(range(5), repeat=batch) if replace else itertools.combinations(range(5), batch)
    x = np.array([np.asarray(params - points[jnp.array(b)].mean(axis=0)) for b in all_batches])
    x = x - x.mean(axis=0)
    np.testing.assert_allclose(third, (x**2).T @ x / len(x), atol=1e-12)
    if replace:
        np.testing.assert_allclose(fourth, (x**4).mean(axis=0) - 3 * (x**2).mean(axis=0) ** 2, atol=1e-12)


def test_cumulants_of_other_noises(x64):
    data = jnp.array([0.0, 1.0, 5.0])
    line = ut.Regression(lambda w, x: w[0] * x, inputs=data, targets=jnp.zeros(3))
    params = jnp.array([1.0])
    third, _ = higher_cumulants(ut.LabelNoise(line, 0.5), params)
    gradients = np.array([x * (x + sign * 0.5) for x in (0.0, 1.0, 5.0) for sign in (1, -1)])
    centred = gradients - gradients.mean()
    exact, spread = (centred**3).mean(), (centred**3).std() / DRAWS**0.5
    assert abs(third[0, 0] - exact) < 5 * spread
    for noise in (ut.Isotropic(line, 0.3), ut.Additive(line, lambda w: w[:, None])):
        assert not np.any(higher_cumulants(noise, params)[0])


@pytest.mark.parametrize("eps", [0.0, 0.4])
def test_derivatives_of_the_metric(x64, eps):
    v = jnp.array([0.3, 2.0])
    found = _metric(v, jnp.asarray(eps))
    value = lambda x: jnp.sum(1 / (jnp.sqrt(x) + eps))
    inverse = lambda x: jnp.sum(jnp.sqrt(x) + eps)
    for function, parts in ((value, found[:3]), (inverse, found[3:])):
        np.testing.assert_allclose(jnp.sum(parts[0]), function(v))
        np.testing.assert_allclose(parts[1], jax.grad(function)(v))
        np.testing.assert_allclose(parts[2], jnp.diagonal(jax.hessian(function)(v)))


def test_entries_without_noise_stay_finite(x64):
    problem = ut.Problem(lambda p, y: (p[0] * p[1] - y) ** 2 + 0 * p[2], jnp.array([0.0, 2.0]))
    found = fluctuations(ut.Minibatch(problem, 1), jnp.array([1.0, 1.0, 5.0]), ut.Adam(eps=0.0), jnp.asarray(ETA))
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(found))
