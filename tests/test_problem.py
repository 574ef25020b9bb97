"""Gradients of problems, sums over samples in any chunking, and Monte Carlo estimates with standard errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import sem

import undertow as ut
from tests.kinds import params, population, problem, regression
from tests.mistakes import assert_explained
from undertow import _chunks as chunks
from undertow import _trees as trees


def central_difference(function, point, direction, step=1e-5):
    up = function(trees.add(point, trees.scale(step, direction)))
    down = function(trees.subtract(point, trees.scale(step, direction)))
    return (up - down) / (2 * step)


@pytest.mark.parametrize("build", [problem, regression])
def test_gradient_against_finite_differences(build, x64):
    task, point = build(dtype=jnp.float64), params(dtype=jnp.float64)
    for seed in range(3):
        direction = trees.standard_normal(jax.random.key(seed), point)
        expected = central_difference(task.loss, point, direction)
        np.testing.assert_allclose(trees.dot(task.gradient(point), direction), expected, rtol=1e-8, atol=1e-8)


def test_vector_outputs(x64):
    task, point = regression(3, jnp.float64), params(3, jnp.float64)
    assert task.predictions(point).shape == (7, 3)
    pairs = zip(*task.data, strict=True)
    by_hand = np.mean([np.sum((np.asarray(task.predict(point, x)) - y) ** 2) / 2 for x, y in pairs])
    np.testing.assert_allclose(task.loss(point), by_hand, rtol=1e-12)
    noise = ut.LabelNoise(task, 0.5)
    jacobian = jax.vmap(jax.jacobian(lambda p, x: task.predict(p, x)), in_axes=(None, 0))(point, task.inputs)
    flat = np.concatenate([np.reshape(leaf, (21, -1)) for leaf in jax.tree.leaves(jacobian)], axis=1)
    labels, _ = noise.covariance(point).parts
    v = trees.standard_normal(jax.random.key(0), point)
    expected = 0.25 / 7 * flat.T @ (flat @ np.asarray(trees.ravel(v)))
    np.testing.assert_allclose(trees.ravel(labels.mv(v)), expected, rtol=1e-10)
    np.testing.assert_allclose(labels.trace(), 0.25 / 7 * np.sum(flat**2), rtol=1e-10)


@settings(max_examples=15, deadline=None)
@given(chunk=st.integers(1, 9), seed=st.integers(0, 2**31 - 1))
def test_results_do_not_depend_on_the_chunking(chunk, seed):
    task, point = problem(), params()
    each = trees.floats_bytes(point) + trees.floats_bytes(task.data) // task.size
    coefficients = jax.random.normal(jax.random.key(seed), (task.size,))
    direction = trees.standard_normal(jax.random.key(seed + 1), point)

    def everything():
        return (
            task.loss(point),
            task.combine(point, coefficients),
            task.along(point, direction),
            task.sample_gradients(point),
            task.quadratic(point, lambda g: trees.dot(g, g)),
        )

    unchunked = everything()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "BUDGET_BYTES", chunk * each)
        assert task.chunk(point) == chunk
        parts = everything()
    for a, b in zip(jax.tree.leaves(unchunked), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_sums_over_samples_agree_with_sample_gradients(x64):
    task, point = problem(jnp.float64), params(dtype=jnp.float64)
    gradients = np.asarray(jax.vmap(trees.ravel)(task.sample_gradients(point)))
    one = jax.grad(task.sample_loss)(point, trees.take(task.data, 4))
    np.testing.assert_allclose(gradients[4], trees.ravel(one), rtol=1e-12)
    weights = np.random.default_rng(0).normal(size=task.size)
    np.testing.assert_allclose(trees.ravel(task.combine(point, jnp.asarray(weights))), weights @ gradients, rtol=1e-10)
    direction = trees.standard_normal(jax.random.key(2), point)
    np.testing.assert_allclose(task.along(point, direction), gradients @ np.asarray(trees.ravel(direction)), rtol=1e-9)


def test_peak_memory_of_chunked_gradients_is_bounded():
    """For many samples of a wide model, the sum over samples must not store n gradients at once."""
    wide, many = 50_000, 20_000
    task = ut.Problem(lambda w, x: jnp.sum(jnp.sin(w * x)), jnp.linspace(0.0, 1.0, many))
    gradient = jax.jit(lambda w: task.combine(w, task.probabilities))
    analysis = gradient.lower(jnp.zeros(wide)).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 6 * chunks.BUDGET_BYTES < 4 * wide * many


def test_reweighted_losses_and_gradients(x64):
    task, point = problem(jnp.float64), params(dtype=jnp.float64)
    weights = jnp.arange(1.0, 8.0) / 28
    shifted = task.reweight(weights)
    np.testing.assert_allclose(shifted.loss(point), weights @ task.losses(point), rtol=1e-12)
    direction = trees.standard_normal(jax.random.key(1), point)
    expected = central_difference(shifted.loss, point, direction)
    np.testing.assert_allclose(trees.dot(shifted.gradient(point), direction), expected, rtol=1e-8, atol=1e-8)


def test_population_estimates_cover_the_truth(x64):
    """loss E(w - x)^2/2, x ~ N(3, 1), at w = 5: loss 2.5, gradient 2, variance of the gradient 1."""
    law = ut.Population(lambda w, x: (w - x) ** 2 / 2, lambda key: 3 + jax.random.normal(key))
    w = jnp.array(5.0)

    def deviations(key):
        loss = law.estimate_loss(w, key=key, samples=400)
        gradient = law.estimate_gradient(w, key=key, samples=400)
        sigma = ut.Minibatch(law, 1).covariance(w, key=key, samples=400)
        return (
            (loss.value - 2.5) / loss.standard_error,
            (gradient.value - 2.0) / gradient.standard_error,
            (sigma.trace() - 1.0) / sigma.trace_error(),
        )

    z = np.asarray(jax.vmap(deviations)(jax.random.split(jax.random.key(0), 2000)))
    inside = np.mean(np.abs(z) < 1.96, axis=1)
    # 95 % nominal; 2,000 trials have a standard error of .005, and the estimate of a variance is skewed at n = 400
    assert np.all(inside > 0.925), inside
    assert np.all(inside < 0.97), inside


def test_population_errors_use_the_unbiased_variance(x64):
    """With five draws n and n - 1 differ clearly; compared with scipy's standard error and numpy's covariance."""
    law, w = ut.Population(lambda w, x: w @ x, lambda key: jax.random.normal(key, (2,)) ** 3), jnp.array([5.0, -2.0])
    key = jax.random.key(4)
    x = np.asarray(law.sample(key, 5).data)  # the gradients
    gradient, sigma = (
        law.estimate_gradient(w, key=key, samples=5),
        ut.Minibatch(law, 1).covariance(w, key=key, samples=5),
    )
    np.testing.assert_allclose(gradient.value, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(gradient.standard_error, sem(x), rtol=1e-12)
    np.testing.assert_allclose(
        law.estimate_loss(w, key=key, samples=5).standard_error, sem(x @ np.asarray(w)), rtol=1e-12
    )
    np.testing.assert_allclose(jax.vmap(sigma.mv)(jnp.eye(2)), np.cov(x.T), rtol=1e-12)
    squares = 5 / 4 * np.sum((x - x.mean(0)) ** 2, axis=1)  # the mean of these values is the trace
    np.testing.assert_allclose(sigma.trace(), squares.mean(), rtol=1e-12)
    np.testing.assert_allclose(sigma.trace_error(), sem(squares), rtol=1e-12)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([0.5, 0.5], r"`weights` has shape \(2,\); give 7 numbers"),
        ([[1 / 7] * 7], r"`weights` has shape \(1, 7\)"),
        (1.0, r"`weights` has shape \(\)"),
        ([0.5, 0.5, -0.5, 0.5, 0, 0, 0], r"`weights\[2\]` is -0.5; `weights` must be finite and not negative"),
        ([1.0, float("nan"), 0, 0, 0, 0, 0], r"`weights\[1\]` is nan"),
        ([0, 0, 0, 0, 0, 0, float("inf")], r"`weights\[6\]` is inf"),
        ([1.0] * 7, r"`Problem.reweight`: `weights` must sum to 1, not to 7; divide it by its sum"),
        ([0.0] * 7, r"`weights` must sum to 1, not to 0"),
    ],
)
def test_weights_that_are_not_probabilities_raise(weights, sentence, as_a_user):
    for form in (jnp.asarray, np.asarray, lambda x: x):
        with pytest.raises(ValueError, match=sentence):
            problem().reweight(form(weights))


def test_accepted_and_rejected_types_of_weights(as_a_user):
    task, point = problem(), params()
    one = task.reweight([0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(one.loss(point), task.losses(point)[2], rtol=1e-6)
    with pytest.raises(TypeError, match="complex"):
        task.reweight(np.full(7, 1 / 7 + 0j))
    half = task.reweight(jnp.full(7, 1 / 7, jnp.float16))
    np.testing.assert_allclose(half.loss(point), task.loss(point), rtol=1e-3)
    traced = jax.jit(lambda w: task.reweight(w).loss(point))(jnp.full(7, 1 / 7))
    np.testing.assert_allclose(traced, task.loss(point), rtol=1e-6)


def test_a_population_without_a_key_gives_the_same_estimate_again():
    law, point = population(), params()
    assert law.estimate_loss(point).value == law.estimate_loss(point).value
    assert law.estimate_loss(point).value != law.estimate_loss(point, key=jax.random.key(5)).value
    assert law.estimate_loss(point).samples == 4096


def test_params_may_be_any_pytree_of_floats():
    def loss(p, x):
        (a, [b]), c = p
        return jnp.sum(a) * x + b * c["deep"][0] - x**2 * b

    point = ((jnp.ones((2, 3)), [jnp.array(2.0)]), {"deep": jnp.array([1.0])})
    task = ut.Problem(loss, jnp.array([1.0, 2.0, 3.0]))
    assert jax.tree.structure(task.gradient(point)) == jax.tree.structure(point)
    run = ut.descend(ut.Minibatch(task, 2), point, step_size=1e-3, steps=10, key=0)
    assert jax.tree.structure(run.params) == jax.tree.structure(point)


def test_data_are_converted_to_arrays_once():
    """NumPy data are copied to the device when the problem is made, not in every call."""
    problem = ut.Problem(lambda w, s: w * s["x"] + s["y"], {"x": np.ones(3, np.float32), "y": jnp.zeros(3)})
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(problem.data))
    keys = jax.random.split(jax.random.key(0), 3)
    assert ut.Problem(lambda w, k: w * jax.random.normal(k), keys).data is keys


POINT = params()
X = jnp.arange(3.0)


def quadratic(w, x):
    return jnp.sum((w - x) ** 2)


MISTAKES = {
    "leading axes that differ": (lambda: ut.Problem(quadratic, (X, jnp.zeros(4))), "leading .* axes differ.*3.*4"),
    "inputs and targets that differ": (lambda: ut.Regression(quadratic, X, jnp.zeros(4)), "`inputs` 3, `targets` 4"),
    "a scalar as data": (lambda: ut.Problem(quadratic, 3.0), "must be arrays"),
    "an array without a sample axis": (lambda: ut.Problem(quadratic, jnp.array(3.0)), "leading sample axis"),
    "no data": (lambda: ut.Problem(quadratic, {}), "no data"),
    "empty data": (lambda: ut.Problem(quadratic, jnp.zeros((0, 2))), "empty"),
    "a loss that is no function": (lambda: ut.Problem(X, quadratic), "called as `loss"),
    "targets of three axes": (lambda: ut.Regression(quadratic, X, jnp.zeros((3, 2, 2))), r"\(n, q\)"),
    "complex targets": (lambda: ut.Regression(lambda w, x: w * x, X, X * 1j), "`targets` is complex"),
    "a population without functions": (lambda: ut.Population(quadratic, 3), "called as `draw"),
    "integer params to a loss": (lambda: problem().loss(jnp.arange(3)), "dtype int32"),
    "a prediction of another shape": (
        lambda: ut.Regression(lambda w, x: w * x, X, X).loss(jnp.ones(2)),
        r"returns shape \(2,\).*target of one sample has shape \(\)",
    ),
    "the loss of a population": (lambda: population().loss(POINT), r"population\.estimate_loss\(params, key="),
    "its loss with a key": (lambda: population().loss(POINT, key=0, samples=8), "estimate_loss"),
    "the gradient of a population": (lambda: population().gradient(POINT), r"population\.estimate_gradient\("),
    "the covariance of a population": (
        lambda: population().covariance(POINT),
        r"Minibatch\(population, 1\)\.covariance",
    ),
    "one sample for a standard error": (
        lambda: population().estimate_loss(POINT, samples=1),
        "`samples` must be at least 2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
