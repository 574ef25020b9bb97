"""Third moments of stochastic gradients against direct averages over draws or over all outcomes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow._trees import ravel
from undertow.noise import third_moment as module
from undertow.noise.third_moment import third_moment


def _task(outputs=1):
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(4, 3)), rng.normal(size=(4, outputs))
    matrix = jnp.asarray(rng.normal(size=(outputs, 3)))
    task = ut.Regression(lambda p, x: jnp.tanh(matrix * p["w"][None] @ x), jnp.asarray(inputs), jnp.asarray(targets))
    return task, {"w": jnp.asarray(rng.normal(size=3))}


def _tensor(moments):
    return np.einsum("m,mi,mj,mk->ijk", moments.weights, *[np.asarray(moments.vectors)] * 3)


def _enumerate(noise, params):
    """Return the third central moments over all batches and all signs of the labels, equally likely."""
    n, size, shape = noise.problem.size, noise.batch_size, noise.problem.targets.shape[1:]
    batches = list(
        itertools.product(range(n), repeat=size) if noise.replace else itertools.permutations(range(n), size)
    )
    signs = [()] if isinstance(noise, ut.Minibatch) else list(itertools.product((-1.0, 1.0), repeat=size * shape[0]))
    index = jnp.asarray([b if size > 1 else b[0] for b in batches for _ in signs])
    slices = index
    if isinstance(noise, ut.LabelNoise):
        slices = index, jnp.asarray(signs * len(batches)).reshape(*index.shape, *shape)
    drawn = np.asarray(jax.vmap(lambda s: ravel(noise.gradient(params, s)))(slices))
    centred = drawn - drawn.mean(axis=0)
    return np.einsum("mi,mj,mk->ijk", centred, centred, centred) / len(centred)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_minibatches_have_the_moments_of_all_batches(size, replace, x64):
    task, params = _task()
    noise = ut.Minibatch(task, size, replace=replace)
    np.testing.assert_allclose(_tensor(third_moment(noise, params)), _enumerate(noise, params), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(("size", "outputs", "replace"), [(1, 1, True), (1, 2, True), (2, 2, True), (2, 1, False)])
def test_label_noise_has_the_moments_of_all_batches_and_signs(size, outputs, replace, x64):
    task, params = _task(outputs)
    noise = ut.LabelNoise(task, 0.7, batch_size=size, replace=replace)
    np.testing.assert_allclose(_tensor(third_moment(noise, params)), _enumerate(noise, params), rtol=1e-9, atol=1e-13)


def test_gaussian_noise_has_none_and_other_noise_is_estimated(monkeypatch, x64):
    task, params = _task()
    assert third_moment(ut.Isotropic(task, 0.3), params) is None
    exact = _tensor(third_moment(ut.Minibatch(task, 1), params))
    draw = lambda key, p: task.batch_gradient(p, jax.random.randint(key, (), 0, task.size))
    sampled = _tensor(third_moment(ut.SampledNoise(task, draw, samples=20_000), params))
    monkeypatch.setattr(module, "DRAWS", 20_000)
    drawn = _tensor(third_moment.dispatch(object)(ut.Minibatch(task, 1), params))
    for estimate in (sampled, drawn):
        assert np.linalg.norm(estimate - exact) < 0.1 * np.linalg.norm(exact)


def test_the_contractions_agree_with_the_tensor(x64):
    task, params = _task()
    moments = third_moment(ut.LabelNoise(task, 0.7), params)
    tensor, directions = _tensor(moments), np.random.default_rng(1).normal(size=(3, 2))
    np.testing.assert_allclose(moments.cubes(), np.einsum("iii->i", tensor), rtol=1e-9)
    np.testing.assert_allclose(
        moments.squares_along(jnp.asarray(directions)), np.einsum("iij,jr->ir", tensor, directions), rtol=1e-9
    )
