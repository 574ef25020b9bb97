"""Label noise: the law of a draw given its batch, and its covariance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

import undertow as ut
from tests import dense
from tests.kinds import params, problem, regression
from tests.mistakes import assert_explained
from undertow import _trees as trees


@pytest.mark.parametrize("outputs", [None, 3])
def test_a_draw_is_the_gradient_on_disturbed_labels(outputs, x64):
    """The mean over the batch of J_i' (prediction_i - label_i), by hand."""
    task, point = regression(outputs, jnp.float64), params(outputs, jnp.float64)
    noise, rows = ut.LabelNoise(task, 0.7, batch_size=2), np.array([4, 1])
    disturbance = np.random.default_rng(0).normal(size=task.targets[rows].shape)
    drawn = eqx.filter_jit(noise.gradient)(point, (jnp.asarray(rows), jnp.asarray(disturbance)))
    residuals = np.asarray(task.predictions(point) - task.targets)[rows] - 0.7 * disturbance
    expected = np.einsum("bq,bqd->d", residuals.reshape(2, -1), dense.jacobians(task, point)[rows]) / 2
    np.testing.assert_allclose(trees.ravel(drawn), expected, rtol=1e-10)


@pytest.mark.parametrize(("batch_size", "outputs"), [(1, None), (1, 3), (2, None), (2, 3)])
def test_every_label_of_a_batch_has_its_own_disturbance(batch_size, outputs):
    rows, signs = ut.LabelNoise(regression(outputs), batch_size=batch_size).randomness(jax.random.key(0), 400)
    batch = () if batch_size == 1 else (batch_size,)
    assert rows.shape == (400, *batch)
    assert signs.shape == (400, *batch, *(() if outputs is None else (outputs,)))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    flat = np.asarray(signs).reshape(400, -1)
    correlation = flat.T @ flat / 400 - np.eye(flat.shape[1])
    assert np.abs(correlation).max() < 5 / np.sqrt(400)  # a pair of fair signs: standard deviation 1/sqrt(400)


def test_gaussian_labels_are_standard_normal():
    _, drawn = ut.LabelNoise(regression(), batch_size=2, kind="gaussian").randomness(jax.random.key(1), 5000)
    assert kstest(np.asarray(drawn).ravel(), "norm").pvalue > 1e-5


def test_at_zero_loss_the_covariance_is_a_multiple_of_the_hessian(x64):
    """strength^2/batch_size * H (zero_loss, section 6): the labels are the predictions of the point itself."""
    net, point = regression(dtype=jnp.float64), params(dtype=jnp.float64)
    task = ut.Regression(net.predict, net.inputs, net.predictions(point))
    flat, unravel = jax.flatten_util.ravel_pytree(point)
    hessian = jax.jit(jax.hessian(lambda v: task.loss(unravel(v))))(flat)
    sigma = ut.LabelNoise(task, 0.7, batch_size=2).covariance(point)
    np.testing.assert_allclose(dense.matrix(sigma.mv, point), 0.7**2 / 2 * hessian, atol=1e-12)


def test_the_labels_are_disturbed_with_the_mean_zero(x64):
    """The mean over both signs of each sample is the gradient of the loss."""
    task, point = regression(dtype=jnp.float64), params(dtype=jnp.float64)
    noise = ut.LabelNoise(task, 0.7)
    slices = jnp.repeat(jnp.arange(task.size), 2), jnp.tile(jnp.array([-1.0, 1.0]), task.size)
    both = jax.jit(jax.vmap(lambda s: trees.ravel(noise.gradient(point, s))))(slices)
    expected = dense.sample_gradients(task, point).mean(0)
    np.testing.assert_allclose(both.mean(0), expected, rtol=1e-10)
    np.testing.assert_allclose(trees.ravel(noise.mean(point)), expected, rtol=1e-10)


MISTAKES = {
    "a label batch larger than the data": (
        lambda: ut.LabelNoise(regression(), batch_size=64, replace=False),
        r"`LabelNoise\(batch_size=64\)`: the problem has 7 samples",
    ),
    "the old name of the batch size": (lambda: ut.LabelNoise(regression(), size=2), "called `batch_size` now"),
    "label noise without labels": (
        lambda: ut.LabelNoise(problem()),
        "`problem` is a Problem; give a `Regression`, which has labels",
    ),
    "label noise of another kind": (lambda: ut.LabelNoise(regression(), kind="uniform"), '"sign" or "gaussian"'),
    "negative label noise": (lambda: ut.LabelNoise(regression(), -1.0), "`strength` must be"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
