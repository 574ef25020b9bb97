"""The protocol of a noise, tested for every kind."""

import importlib
import pkgutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import undertow as ut
from tests.kinds import KINDS, params
from tests.kinds import point as point_of
from undertow import _trees as trees
from undertow.covariance import AbstractCovariance

DRAWS = 20_000
PROBES = 12
LEVEL = 1e-5  # of a false alarm in one test, over all its statistics

kinds = pytest.mark.parametrize("kind", KINDS)


def probes(like) -> np.ndarray:
    """Fixed random directions, with the coordinate axes among them."""
    axes = np.eye(trees.count(like))[:4]
    return np.concatenate([axes, np.random.default_rng(5).normal(size=(PROBES, trees.count(like)))])


def largest_z(draws: np.ndarray, mean: np.ndarray, covariance_times, directions: np.ndarray) -> tuple[float, float]:
    """|z| of the first two moments along the directions: of the mean, and of the variance."""
    along = (draws - mean) @ directions.T
    z_mean = along.mean(0) / (along.std(0) / np.sqrt(len(draws)) + 1e-12)
    predicted = np.array([d @ covariance_times(d) for d in directions])
    squares = along**2
    z_variance = (squares.mean(0) - predicted) / (squares.std(0) / np.sqrt(len(draws)) + 1e-12)
    return np.abs(z_mean).max(), np.abs(z_variance).max()


def threshold(statistics: int) -> float:
    return norm.isf(LEVEL / (2 * statistics))


def flat_operator(sigma: AbstractCovariance, like):
    _, unravel = jax.flatten_util.ravel_pytree(like)
    product = eqx.filter_jit(lambda v: trees.ravel(sigma.mv(unravel(v))))
    return lambda v: np.asarray(product(jnp.asarray(v, jax.tree.leaves(like)[0].dtype)))


def test_every_noise_has_an_example():
    extra = ("undertow.torch", "undertow.analysis.torch")  # they have no noises, and need PyTorch
    for module in pkgutil.walk_packages(ut.__path__, "undertow.", onerror=lambda name: None):
        if not module.name.startswith(extra):
            importlib.import_module(module.name)

    def final(cls):
        subclasses = cls.__subclasses__()
        return {cls} if not subclasses else set().union(*map(final, subclasses))

    defined = {cls.__name__ for cls in final(ut.AbstractNoise) if cls.__module__.startswith("undertow.")}
    shown = {type(build()).__name__ for build in KINDS.values()}
    assert defined <= shown, f"add an example of {defined - shown} to tests/kinds.py"


@kinds
def test_draws_have_the_mean_and_the_covariance(kind, x64):
    noise, point = KINDS[kind](jnp.float64), point_of(kind, jnp.float64)
    keys = jax.random.split(jax.random.key(3), DRAWS)
    draws = np.asarray(jax.jit(jax.vmap(lambda k: trees.ravel(noise.draw(k, point))))(keys))
    directions = probes(point)
    if isinstance(noise.problem, ut.Population):  # the reference is itself an estimate: make it much better
        reference = noise.problem.estimate_gradient(point, key=jax.random.key(9), samples=400 * DRAWS // 10).value
        sigma = noise.covariance(point, key=jax.random.key(9), samples=400 * DRAWS // 10)
    else:
        reference, sigma = noise.mean(point), noise.covariance(point)
    z_mean, z_variance = largest_z(draws, np.asarray(trees.ravel(reference)), flat_operator(sigma, point), directions)
    assert z_mean < threshold(len(directions))
    assert z_variance < threshold(len(directions))


def test_the_moments_test_can_fail(x64):
    noise, point = KINDS["label noise, one sample"](jnp.float64), params(dtype=jnp.float64)
    keys = jax.random.split(jax.random.key(3), DRAWS)
    draws = np.asarray(jax.jit(jax.vmap(lambda k: trees.ravel(noise.draw(k, point))))(keys))
    directions = probes(point)
    mean = np.asarray(trees.ravel(noise.mean(point)))
    sigma = flat_operator(noise.covariance(point), point)
    _, z_variance = largest_z(draws, mean, lambda d: 1.1 * sigma(d), directions)
    z_mean, _ = largest_z(draws, 1.1 * mean, sigma, directions)
    assert z_mean > threshold(len(directions))
    assert z_variance > threshold(len(directions))


@kinds
def test_gaussian_has_the_covariance(kind, x64):
    noise, point = KINDS[kind](jnp.float64), point_of(kind, jnp.float64)
    sigma = noise.covariance(point)
    count = 2_000 if isinstance(noise.problem, ut.Population) else DRAWS
    keys = jax.random.split(jax.random.key(4), count)
    draws = np.asarray(eqx.filter_jit(lambda k: jax.lax.map(lambda j: trees.ravel(sigma.gaussian(j)), k))(keys))
    directions = probes(point)
    z_mean, z_variance = largest_z(draws, np.zeros(draws.shape[1]), flat_operator(sigma, point), directions)
    assert z_mean < threshold(len(directions))
    assert z_variance < threshold(len(directions))


@kinds
def test_covariance_answers_agree_with_one_another(kind, x64):
    noise, point = KINDS[kind](jnp.float64), point_of(kind, jnp.float64)
    sigma = noise.covariance(point)
    flat, unravel = jax.flatten_util.ravel_pytree(point)
    size = flat.size
    apply = jax.jit(lambda v: trees.ravel(sigma.mv(unravel(v))))
    dense = np.stack([apply(e) for e in jnp.eye(size)], axis=1)
    np.testing.assert_allclose(dense, dense.T, atol=1e-10)

    factor = sigma.factor()
    columns = np.concatenate([np.reshape(leaf, (-1, leaf.shape[-1])) for leaf in jax.tree.leaves(factor)])
    np.testing.assert_allclose(columns @ columns.T, dense, atol=1e-10)

    middle = np.random.default_rng(1).normal(size=(size, size))
    matrix = lambda v: unravel(jnp.asarray(middle) @ trees.ravel(v))
    np.testing.assert_allclose(sigma.trace(), np.trace(dense), rtol=1e-9)
    np.testing.assert_allclose(sigma.trace(matrix), np.trace(dense @ middle), rtol=1e-8, atol=1e-10)

    q = np.linalg.qr(np.random.default_rng(2).normal(size=(size, 3)))[0]
    onto = q @ q.T
    split = sigma.split(lambda v: unravel(jnp.asarray(onto) @ trees.ravel(v)))
    rest = np.eye(size) - onto
    v = np.random.default_rng(3).normal(size=size)
    np.testing.assert_allclose(trees.ravel(split.tangent.mv(unravel(v))), onto @ dense @ onto @ v, atol=1e-10)
    np.testing.assert_allclose(trees.ravel(split.normal.mv(unravel(v))), rest @ dense @ rest @ v, atol=1e-10)
    np.testing.assert_allclose(trees.ravel(split.mixed(unravel(v))), rest @ dense @ onto @ v, atol=1e-10)
    np.testing.assert_allclose(split.normal.trace(), np.trace(rest @ dense), rtol=1e-8, atol=1e-10)

    along = lambda v: {"one": trees.ravel(v) ** 2, "two": trees.dot(v, matrix(v))}
    moments = sigma.moment(along)
    np.testing.assert_allclose(moments["one"], np.diag(dense), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(moments["two"], np.trace(dense @ middle), rtol=1e-8, atol=1e-9)

    estimate = sigma.trace_estimate(jax.random.key(0), probes=400)
    assert abs(estimate.value - np.trace(dense)) < 5 * estimate.standard_error


@kinds
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_shapes_and_dtypes(kind, dtype, x64):
    noise, point = KINDS[kind](dtype), point_of(kind, dtype)
    like = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), point)
    key = jax.random.key(0)
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    assert shapes(noise.draw(key, point)) == like
    sigma = noise.covariance(point)
    assert shapes(sigma.mv(point)) == like
    assert shapes(sigma.gaussian(key)) == like
    assert all(leaf.shape[0] == 5 for leaf in jax.tree.leaves(noise.randomness(key, 5, point)))


@kinds
def test_draw_is_the_gradient_on_randomness(kind):
    noise, point = KINDS[kind](), point_of(kind)
    key = jax.random.key(8)
    drawn = noise.draw(key, point)
    for like in (None, point):
        one = trees.take(noise.randomness(key, 1, like), 0)
        again = noise.gradient(point, one)
        np.testing.assert_allclose(trees.ravel(again), trees.ravel(drawn), rtol=1e-6)


@kinds
def test_no_key_is_used_twice(kind):
    """JAX's own check of every program that draws: two draws from one key would depend on each other."""
    noise, start = KINDS[kind](), point_of(kind)
    with jax.debug_key_reuse(True):
        jax.eval_shape(jax.jit(lambda key: noise.randomness(key, 4, start)), jax.random.key(0))
        jax.eval_shape(
            jax.jit(lambda key: noise.gradient(start, trees.take(noise.randomness(key, 1), 0))), jax.random.key(0)
        )
        jax.eval_shape(jax.jit(lambda key: noise.covariance(start).gaussian(key)), jax.random.key(0))


@kinds
def test_jit_vmap_and_one_trace(kind):
    noise, point = KINDS[kind](), point_of(kind)
    traces = []

    @eqx.filter_jit
    def draw(noise, key, point):
        traces.append(1)
        return noise.draw(key, point)

    first = draw(noise, jax.random.key(0), point)
    other_values = jax.tree.map(lambda leaf: leaf * 1.5 if eqx.is_inexact_array(leaf) else leaf, noise)
    draw(other_values, jax.random.key(1), trees.scale(2.0, point))
    assert len(traces) == 1
    np.testing.assert_allclose(trees.ravel(first), trees.ravel(noise.draw(jax.random.key(0), point)), rtol=2e-5)

    keys = jax.random.split(jax.random.key(2), 6)
    together = jax.vmap(noise.draw, in_axes=(0, None))(keys, point)
    alone = [trees.ravel(noise.draw(k, point)) for k in keys]
    np.testing.assert_allclose(jax.vmap(trees.ravel)(together), np.stack(alone), rtol=2e-5, atol=1e-6)
