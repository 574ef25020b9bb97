"""The covariance of SGD around its mean: exact moments of linear least squares, structure against the general case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import undertow as ut
from tests.dense import jacobians, matrix
from undertow import _trees as trees
from undertow.covariance import AbstractCovariance
from undertow.manifold import fluctuations as module
from undertow.manifold.fluctuations import delays, directions, fluctuations, noise_terms

ETA = 0.05
LATE = 1e6


def linear(samples, size, outputs=1, seed=0):
    """Return linear least squares with the minimiser of smallest norm; the residuals vanish for samples < size."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(samples, outputs, size))
    targets = rng.normal(size=(samples, outputs))
    task = ut.Regression(lambda w, x: x @ w, jnp.asarray(inputs), jnp.asarray(targets))
    return task, inputs, targets


def minimiser(inputs, targets, probabilities):
    root = np.sqrt(np.repeat(probabilities, inputs.shape[1]))[:, None]
    rows = inputs.reshape(-1, inputs.shape[-1])
    return np.linalg.lstsq(root * rows, root[:, 0] * targets.reshape(-1), rcond=None)[0]


def stationary_covariance(maps, offsets, weights, extra, steps=20_000):
    """Iterate the exact second moments of w+ = A_b w + c_b + e for batches b of the given weights, cov e = extra."""
    size = len(offsets[0])
    first, second = np.zeros(size), np.zeros((size, size))
    for _ in range(steps):
        mean = sum(p * (a @ first + c) for p, a, c in zip(weights, maps, offsets, strict=True))
        moment = extra.copy()
        for p, a, c in zip(weights, maps, offsets, strict=True):
            cross = np.outer(a @ first, c)
            moment += p * (a @ second @ a.T + cross + cross.T + np.outer(c, c))
        if np.abs(moment - second).max() < 1e-15 and np.abs(mean - first).max() < 1e-15:
            break
        first, second = mean, moment
    return second - np.outer(first, first)


def batch_maps(inputs, targets, groups, weights):
    """Return the affine maps of one step on each group of samples, with weights inside the groups that sum to one."""
    size = inputs.shape[-1]
    maps, offsets = [], []
    for members in groups:
        share = weights[members] / weights[members].sum()
        rows = inputs[members]
        maps.append(np.eye(size) - ETA * np.einsum("n,nqk,nql->kl", share, rows, rows))
        offsets.append(ETA * np.einsum("n,nqk,nq->k", share, rows, targets[members]))
    return maps, offsets


def dense_covariance(noise, point, age=LATE, closure="averaged_noise", eta=ETA):
    """Return eta X as a matrix, from the expectation of all products of two entries."""
    around = fluctuations(noise, jnp.asarray(point), lambda x: x, jnp.asarray(age), jnp.asarray(eta), closure)
    return eta * np.asarray(around.expect(lambda u, v: (jnp.outer(u, v) + jnp.outer(v, u)) / 2)), around


CASES = {
    "label noise in the image of J'": (4, 7, 1, 0.7),
    "label noise with the Hessian": (9, 3, 1, 0.7),
    "batches with the Hessian": (9, 3, 1, 0.0),
    "label noise of several outputs in the image of J'": (2, 7, 2, 0.7),
    "label noise of several outputs with the Hessian": (6, 3, 2, 0.7),
    "batches with several outputs": (6, 3, 2, 0.0),
}
"""Samples, parameters, outputs and strength of the label noise."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_covariance_equals_the_exact_second_moments_of_sgd(case, weighted, x64):
    """Batches of one sample, with and without label noise and weights of the samples, at the stationary mean."""
    *shape, label = case
    task, inputs, targets = linear(*shape)
    p = np.full(shape[0], 1 / shape[0])
    if weighted:
        p = np.arange(1.0, shape[0] + 1) / np.arange(1.0, shape[0] + 1).sum()
        task = task.reweight(p)
    noise = ut.LabelNoise(task, label) if label else ut.Minibatch(task, 1)
    maps, offsets = batch_maps(inputs, targets, np.arange(shape[0])[:, None], p)
    extra = ETA**2 * label**2 * np.einsum("n,nqk,nql->kl", p, inputs, inputs)
    expected = stationary_covariance(maps, offsets, p, extra)
    found, around = dense_covariance(noise, minimiser(inputs, targets, p))
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
    assert 0 < float(around.growth) < 1


@pytest.mark.parametrize("shape", [(6, 4, 1), (6, 9, 1)], ids=["Hessian", "image of J'"])
def test_whole_environments_give_the_exact_second_moments(shape, x64):
    """In the image of J', a residual that does not vanish: the targets of two equal inputs differ."""
    task, inputs, targets = linear(*shape)
    inputs[1] = inputs[0]
    task = ut.Regression(task.predict, jnp.asarray(inputs), jnp.asarray(targets))
    labels = np.array([0, 1, 1, 2, 2, 0])
    weights = np.array([0.5, 0.2, 0.3])
    noise = ut.Environments(task, labels, weights)
    p = (weights / np.bincount(labels))[labels]
    groups = [np.flatnonzero(labels == e) for e in range(3)]
    maps, offsets = batch_maps(inputs, targets, groups, p)
    expected = stationary_covariance(maps, offsets, weights, np.zeros((shape[1], shape[1])))
    found, _ = dense_covariance(noise, minimiser(inputs, targets, p))
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def test_batches_inside_environments_give_the_exact_second_moments(x64):
    """One sample of one environment per step is one sample of the reweighted problem."""
    task, inputs, targets = linear(6, 4)
    labels, weights = np.array([0, 1, 1, 2, 2, 0]), np.array([0.5, 0.2, 0.3])
    noise = ut.Environments(task, labels, weights, batch_size=1)
    p = (weights / np.bincount(labels))[labels]
    maps, offsets = batch_maps(inputs, targets, np.arange(6)[:, None], p)
    expected = stationary_covariance(maps, offsets, p, np.zeros((4, 4)))
    found, _ = dense_covariance(noise, minimiser(inputs, targets, p))
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("outputs", [1, 2])
def test_isotropic_noise_has_a_part_beside_the_image(outputs, x64):
    """X after the time t for small steps is int_0^t exp(-2 H s) ds times the variance, also where H is zero."""
    task, inputs, _ = linear(4 // outputs, 7, outputs)
    hessian = np.einsum("nqk,nql->kl", inputs, inputs) / task.size
    age, variance = 3.0, 0.6
    grid = np.linspace(0, age, 2001)
    each = np.stack([expm(-2 * hessian * s) for s in grid])
    expected = variance * np.trapezoid(each, grid, axis=0)
    found, around = dense_covariance(ut.Isotropic(task, variance**0.5), np.ones(7), age, "small_step")
    np.testing.assert_allclose(found / ETA, expected, atol=1e-5)
    total, slow = around.spread()
    assert float(total) == pytest.approx(np.trace(expected), rel=1e-5)
    curvature, vectors = np.linalg.eigh(hessian)
    late = curvature * age >= 1
    relaxed = np.einsum("ik,ij,jk->k", vectors[:, late], expected, vectors[:, late]).sum()
    assert float(slow) == pytest.approx(np.trace(expected) - relaxed, rel=1e-5)


class Plain(AbstractCovariance):
    """A covariance without the structure that `fluctuations` knows."""

    inside: AbstractCovariance

    def mv(self, vector):
        return self.inside.mv(vector)

    def normal_structure(self):
        return self.inside.normal_structure()

    def sqrt_mv(self, normals):
        return self.inside.sqrt_mv(normals)

    def moment(self, form):
        return self.inside.moment(form)

    def trace(self, matrix=None):
        return self.inside.trace(matrix)

    def factor(self):
        return self.inside.factor()


class Hidden(ut.AbstractNoise):
    """A noise whose covariance has no known structure."""

    problem: ut.Regression
    inside: ut.AbstractNoise

    def randomness(self, key, count, like=None):
        return self.inside.randomness(key, count, like)

    def gradient(self, params, slice):
        return self.inside.gradient(params, slice)

    def covariance(self, params):
        return Plain(self.inside.covariance(params))


@pytest.mark.parametrize("build", [lambda t: ut.Minibatch(t, 2), lambda t: ut.Isotropic(t, 0.3)])
def test_the_general_covariance_agrees_with_the_special_one(build, x64):
    """For linear predictions, at residuals that do not vanish, and at an age at which nothing has relaxed fully."""
    task, *_ = linear(4, 7)
    special, general = build(task), Hidden(task, build(task))
    for age in (1.0, LATE):
        expected, around = dense_covariance(special, np.ones(7), age)
        found, other = dense_covariance(general, np.ones(7), age)
        np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
        np.testing.assert_allclose(other.spread(), around.spread(), rtol=1e-6, atol=1e-7)


def tanh_task(outputs=1):
    rng = np.random.default_rng(3)
    inputs, targets = jnp.asarray(rng.normal(size=(3, 2))), jnp.asarray(rng.normal(size=(3, outputs)))
    params = jnp.asarray(rng.normal(size=8 + 4 * outputs))

    def predict(w, x):
        return w[8:].reshape(outputs, 4) @ jnp.tanh(w[:8].reshape(4, 2) @ x)

    return ut.Regression(predict, inputs, targets), params


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_terms_equal_dense_matrices_for_a_network(outputs, x64):
    """V diag(h) V' = J'J/n, and V C V' = Sigma for noises in the image of J'."""
    task, params = tanh_task(outputs)
    frame = directions(task, params, lambda x: x)
    rows = jacobians(task, params).reshape(-1, params.size)
    v = np.asarray(frame.normal)
    np.testing.assert_allclose((v * np.asarray(frame.curvature)) @ v.T, rows.T @ rows / task.size, atol=1e-10)
    for noise in (ut.LabelNoise(task, 0.5), ut.Minibatch(task, 1), ut.Environments(task, [0, 0, 1])):
        terms = noise_terms(noise, frame)
        expected = matrix(noise.covariance(params).mv, params)
        np.testing.assert_allclose(v @ np.asarray(terms.inner) @ v.T, expected, atol=1e-10)


def test_the_response_without_structure_is_half_the_second_derivative(x64):
    """V'(1/2 Sigma''[X])V against second differences of a dense covariance, for a loss that is not least squares."""
    rng = np.random.default_rng(4)
    data = jnp.asarray(rng.normal(size=(5, 3)))
    task = ut.Problem(lambda w, x: jnp.logaddexp(0.0, jnp.sin(w) @ x) + jnp.sum(w**4), data)
    noise, point = ut.Minibatch(task, 1), jnp.asarray(rng.normal(size=3))
    frame = directions(task, point, lambda x: x)
    terms = noise_terms(noise, frame)
    assert terms.respond is not None
    half = rng.normal(size=(3, 2))
    x = half @ half.T
    sigma = jax.jit(lambda w: jax.vmap(noise.covariance(w).mv)(jnp.eye(3)))
    v, step = np.asarray(frame.normal), 1e-3
    expected = np.zeros((3, 3))
    for direction in (v @ half).T:
        ahead, behind = sigma(point + step * direction), sigma(point - step * direction)
        expected += np.asarray(ahead + behind - 2 * sigma(point)) / (2 * step**2)
    np.testing.assert_allclose(v @ np.asarray(terms.respond(jnp.asarray(x))) @ v.T, expected, atol=1e-4)


def test_unstable_second_moments_have_a_growth_above_one(x64):
    """One input of two, 0 and 1: (1 - eta/2)^2 + eta^2/4 > 1 for eta > 2, while the mean is stable up to 4."""
    task = ut.Regression(lambda w, x: w[0] * x, jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0]))
    noise = ut.LabelNoise(task, 1.0)
    growths = []
    for eta in (1.9, 2.1):
        around = fluctuations(noise, jnp.ones(1), lambda x: x, jnp.asarray(LATE), jnp.asarray(eta), "averaged_noise")
        growths.append(float(around.growth))
    assert growths[0] < 1 < growths[1]


def test_nothing_relaxes_along_flat_and_negative_directions(x64):
    task = ut.Problem(lambda w, _: (3 * w[0] ** 2 - w[1] ** 2) / 2 + 0 * w[2], jnp.zeros(1))
    frame = directions(task, jnp.ones(3), lambda x: x)
    np.testing.assert_allclose(frame.curvature, [-1, 0, 3], atol=1e-12)
    assert float(frame.lowest) == pytest.approx(-1)
    delay = delays(frame, jnp.asarray(2.0), jnp.asarray(0.1))
    expected = (1 - np.exp(-2 * 5.1)) / 5.1  # 3 + 3 - 0.1 * 9
    np.testing.assert_allclose(jnp.diag(delay), [2, 2, expected], rtol=1e-12)


def test_sums_over_columns_do_not_depend_on_the_chunk(monkeypatch, x64):
    task, params = tanh_task()
    noise = ut.LabelNoise(task, 0.5)
    whole, _ = dense_covariance(noise, params)
    monkeypatch.setattr(module, "COLUMNS", 2)
    np.testing.assert_allclose(dense_covariance(noise, params)[0], whole, atol=1e-14)


def test_trees_of_parameters_are_flattened_in_order(x64):
    """The same problem in a dict gives the same X."""
    task, params = tanh_task()
    expected, _ = dense_covariance(ut.LabelNoise(task, 0.5), params)
    tree = {"a": params[:8], "b": params[8:]}
    named = ut.Regression(lambda p, x: task.predict(trees.ravel(p), x), task.inputs, task.targets)
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    around = fluctuations(
        ut.LabelNoise(named, 0.5), flat, unravel, jnp.asarray(LATE), jnp.asarray(ETA), "averaged_noise"
    )
    found = ETA * around.expect(lambda u, v: jnp.outer(u, v))
    np.testing.assert_allclose((found + found.T) / 2, expected, atol=1e-12)
