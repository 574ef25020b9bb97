"""The protocol of a noise, tested for every kind."""

import importlib
import pkgutil
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import KINDS, params
from tests.kinds import point as point_of
from tests.moments import DRAWS, flat_operator, largest_z, probes, threshold
from undertow import _trees as trees
from undertow.covariance import ScaledIdentity
from undertow.noise.base import normals, normals_now

kinds = pytest.mark.parametrize("kind", KINDS)


def test_every_noise_has_an_example():
    # they have no noises, and need PyTorch
    extra = ("undertow.torch", "undertow.analysis.torch", "undertow.analysis.census", "undertow.analysis.equilibrate")
    for module in pkgutil.walk_packages(ut.__path__, "undertow.", onerror=lambda name: None):
        if not module.name.startswith(extra):
            importlib.import_module(module.name)

    def final(cls):
        subclasses = cls.__subclasses__()
        return {cls} if not subclasses else set().union(*map(final, subclasses))

    # the noises of claims have tests of their own, and those of examples in docstrings are in no module
    inside = lambda module: module.startswith("undertow.") and not module.startswith("undertow.papers.")
    found = lambda cls: inside(cls.__module__) and getattr(sys.modules[cls.__module__], cls.__name__, None) is cls
    defined = {cls.__name__ for cls in final(ut.AbstractNoise) if found(cls)}
    shown = {type(build()).__name__ for build in KINDS.values()}
    assert defined <= shown, f"add an example of {defined - shown} to tests/kinds.py"


@kinds
def test_draws_have_the_mean_and_the_covariance(kind, x64):
    noise, point = KINDS[kind](jnp.float64), point_of(kind, jnp.float64)
    keys = jax.random.split(jax.random.key(3), DRAWS)
    draws = np.asarray(jax.jit(jax.vmap(lambda k: trees.ravel(noise.draw(k, point))))(keys))
    directions = probes(point)
    if isinstance(noise, ut.SampledNoise):  # the covariance is itself an estimate: make it much better
        noise = ut.SampledNoise(noise.problem, noise.drawer, samples=400 * DRAWS // 10, key=9)
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


@pytest.mark.parametrize("like", [jnp.zeros(3), {"a": jnp.zeros((2, 2)), "b": jnp.zeros(())}], ids=["flat", "tree"])
def test_normals_drawn_at_a_step_are_those_of_the_block(like):
    """Without `like` the block has keys; each key gives the numbers that the block with `like` has."""
    keys, block = normals(jax.random.key(4), 5, None), normals(jax.random.key(4), 5, like)
    assert keys.shape == (5,)
    for step in range(5):
        expected = trees.take(block, step)
        for drawn in (normals_now(keys[step], like), normals_now(expected, like)):
            np.testing.assert_array_equal(trees.ravel(drawn), trees.ravel(expected))


class Coin(ut.AbstractNoise):
    """A noise that defines the three methods alone: the gradient of w^2/2 with a fair sign added."""

    problem: ut.Problem

    def randomness(self, key, count, like=None):
        return jax.random.rademacher(key, (count,), jnp.float32)

    def gradient(self, params, slice):
        return params + slice

    def covariance(self, params):
        return ScaledIdentity(jnp.asarray(1.0), params)


def test_three_methods_make_a_noise():
    noise = Coin(ut.Problem(lambda w, _: w**2 / 2, jnp.zeros(1)))
    point = jnp.array(2.0)
    assert {float(noise.draw(seed, point)) for seed in range(20)} == {1.0, 3.0}
    assert float(noise.mean(point)) == 2
    assert noise.check(point) is None
    assert noise.check_step_size(1e9) is None
    with pytest.raises(TypeError, match="dtype int32"):
        noise.check(jnp.arange(2))
    run = ut.descend(noise, point, step_size=0.5, steps=8, key=0)
    assert np.isfinite(run.params)


def test_a_noise_without_its_methods_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        ut.AbstractNoise()


def test_a_key_that_is_none_is_named_with_the_draw(as_a_user):
    noise = Coin(ut.Problem(lambda w, _: w**2 / 2, jnp.zeros(1)))
    with pytest.raises(TypeError, match=r"`Coin\.draw\(key='x'\)`: give one key, `key=jax.random.key\(0\)`"):
        noise.draw("x", jnp.array(2.0))
