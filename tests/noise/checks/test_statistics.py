"""Statistics of draws: projections against dense matrices, the level over many keys, and the power."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.kinds import KINDS, params, problem, scaled_sample_gradient
from tests.kinds import point as point_of
from undertow import _trees as trees
from undertow.covariance import Factored, ScaledIdentity, Sum
from undertow.noise.checks import statistics as module
from undertow.noise.checks.scores import largest_score
from undertow.noise.checks.statistics import Statistic, directions, mean_gradient, project, statistics

POINT = params()


def compared(noise, point, key: int, draws: int = 1024) -> list[Statistic]:
    keys = jax.random.split(jax.random.key(key), 2)
    mean, sampled = mean_gradient(noise, point, keys[0], draws)
    return statistics(noise, point, noise.covariance(point), mean, sampled, keys[1], draws)


def test_directions_are_unit_vectors_on_all_params_and_on_single_leaves():
    vectors = directions(jax.random.key(0), POINT)
    flat = np.asarray(jax.vmap(trees.ravel)(vectors))
    assert flat.shape == (16 + 2, trees.count(POINT))
    np.testing.assert_allclose((flat**2).sum(axis=1), 1, rtol=1e-5)
    assert np.all(flat[:16] != 0)
    inner, outer = POINT["inner"].size, POINT["outer"].size
    assert np.all(flat[16, inner:] == 0)
    assert np.all(flat[17, :inner] == 0)
    assert np.count_nonzero(flat[17]) == outer


@pytest.mark.parametrize(("like", "count"), [(jnp.zeros(()), 1), (jnp.zeros(2), 3), (jnp.zeros(9), 16)])
def test_few_params_have_few_directions(like, count):
    """A covariance of size D has D(D + 1)/2 entries."""
    assert directions(jax.random.key(0), like).shape == (count, *like.shape)


def test_many_leaves_have_at_most_sixteen_directions_of_their_own():
    vectors = directions(jax.random.key(0), [jnp.zeros(2)] * 40)
    assert vectors[0].shape == (32, 2)


def test_projections_are_those_of_the_draws(x64):
    """The numbers of every draw, from the same keys, against dense linear algebra."""
    point, noise = params(dtype=jnp.float64), KINDS["label noise, one sample"](jnp.float64)
    vectors = directions(jax.random.key(0), point)
    signs = jax.tree.map(jnp.sign, trees.standard_normal(jax.random.key(1), point))
    mean = noise.mean(point)
    drawn = project(noise, point, mean, vectors, signs, jax.random.key(2), 400)
    assert drawn.blocks == 2
    slices = [noise.randomness(key, 200, point) for key in jax.random.split(jax.random.key(2), 2)]
    draws = jnp.concatenate([jax.vmap(lambda s: trees.ravel(noise.gradient(point, s)))(s) for s in slices])
    centred = np.asarray(draws) - np.asarray(trees.ravel(mean))
    flat, weights = np.asarray(jax.vmap(trees.ravel)(vectors)), np.asarray(trees.ravel(signs))
    np.testing.assert_allclose(drawn.along, centred @ flat.T, atol=1e-12)
    np.testing.assert_allclose(drawn.square, (centred**2).sum(axis=1), atol=1e-12)
    np.testing.assert_allclose(drawn.signed, (centred**2 * weights).sum(axis=1), atol=1e-12)
    average = centred.mean(axis=0)
    np.testing.assert_allclose(drawn.mean, [average @ average, (weights * average) @ average], atol=1e-12)


def test_memory_bounds_the_blocks(monkeypatch):
    monkeypatch.setattr(module.chunks, "BUDGET_BYTES", 8 * 32 * 8 * 4 // 4)
    noise, vectors = KINDS["isotropic"](), directions(jax.random.key(0), POINT)
    drawn = project(noise, POINT, noise.mean(POINT), vectors, POINT, jax.random.key(2), 100)
    assert drawn.blocks > 2
    assert 100 <= len(drawn.along) <= 100 + drawn.blocks


def test_values_and_expected_values_are_moments(x64):
    point, noise = params(dtype=jnp.float64), KINDS["label noise, one sample"](jnp.float64)
    by_name = {statistic.name: statistic for statistic in compared(noise, point, 0)}
    key = jax.random.split(jax.random.split(jax.random.key(0), 2)[1], 3)[0]
    vectors = np.asarray(jax.vmap(trees.ravel)(directions(key, point)))
    mean = by_name["mean of the draws: mean(params)"]
    np.testing.assert_allclose(mean.expected, vectors @ np.asarray(trees.ravel(noise.mean(point))), atol=1e-12)
    columns = np.asarray(jax.vmap(trees.ravel, in_axes=-1)(noise.covariance(point).factor()))
    variance = by_name["variance of the draws: v'mv(v)"]
    np.testing.assert_allclose(variance.expected, ((vectors @ columns.T) ** 2).sum(axis=1), rtol=1e-8)
    trace = by_name["|draw - mean|^2: trace()"]
    np.testing.assert_allclose(trace.expected, (columns**2).sum(), rtol=1e-8)
    np.testing.assert_allclose(trace.value, trace.expected, rtol=0.2)
    np.testing.assert_allclose(variance.value, variance.expected, rtol=0.5)


PROBLEM = problem()
DRAW = scaled_sample_gradient(PROBLEM)
SKEWED = ut.Problem(
    lambda w, x: jnp.sum((w - x) ** 2) / 2, jnp.exp(1.0 * jax.random.normal(jax.random.key(0), (300, 4)))
)
CORRECT = {
    "Gaussian": (KINDS["isotropic"](), POINT),
    "seven samples": (KINDS["minibatch of one"](), POINT),
    "skewed samples": (ut.Minibatch(SKEWED, 2), jnp.ones(4)),
    "an estimated covariance": (ut.SampledNoise(PROBLEM, DRAW, samples=512), POINT),
}
KEYS = 40


@pytest.mark.slow
@pytest.mark.parametrize("case", CORRECT)
def test_a_correct_noise_fails_as_often_as_stated(case):
    """All z-scores over many keys: standard normal tails, and at most the stated share of failed checks."""
    failed, pooled = 0, []
    for key in range(KEYS):
        noise, point = CORRECT[case]
        if isinstance(noise, ut.SampledNoise):  # its own draws are random as well
            noise = ut.SampledNoise(PROBLEM, DRAW, samples=512, key=1000 + key)
        z = np.concatenate([s.z for s in compared(noise, point, key, draws=4096) if s.required])
        failed += np.abs(z).max() >= largest_score(0.1, z.size)
        pooled.append(z)
    assert failed <= 11  # 4 are expected at most; 12 or more have probability 5e-4
    pooled = np.concatenate(pooled)
    assert 0.7 < pooled.std() < 1.15
    assert np.mean(np.abs(pooled) > 2.576) < 0.02


class Planted(ut.AbstractNoise):
    """A noise with a wrong mean, a wrong covariance, or draws that depend on each other."""

    noise: ut.AbstractNoise
    problem: ut.AbstractProblem
    mean_factor: float = 1.0
    covariance_factor: float = 1.0
    repeat: int = eqx.field(static=True, default=1)
    fixed_key: bool = eqx.field(static=True, default=False)

    def randomness(self, key, count, like=None):
        key = jax.random.key(0) if self.fixed_key else key
        slices = self.noise.randomness(key, -(-count // self.repeat), like)
        return jax.tree.map(lambda x: jnp.repeat(x, self.repeat, axis=0)[:count], slices)

    def gradient(self, params, slice):
        return self.noise.gradient(params, slice)

    def mean(self, params):
        return trees.scale(self.mean_factor, self.noise.mean(params))

    def covariance(self, params):
        columns = trees.scale(self.covariance_factor**0.5, self.noise.covariance(params).factor())
        return Factored(columns)


def failing(noise, key: int, draws: int = 4096) -> set[str]:
    values = compared(noise, POINT, key, draws)
    limit = largest_score(1e-4, sum(statistic.z.size for statistic in values))
    return {s.name for s in values if s.required and not np.abs(s.z).max() < limit}


MEAN = "mean of the draws: mean(params)"
VARIANCE = "variance of the draws: v'mv(v)"
TRACE, SIGNED = "|draw - mean|^2: trace()", "(draw - mean)'D(draw - mean): trace(D)"
CORRELATION = "consecutive draws: correlation"


@pytest.mark.parametrize(
    ("plant", "part"),
    [
        ({"mean_factor": 1.5}, MEAN),
        ({"covariance_factor": 1.5}, VARIANCE),
        ({"covariance_factor": 1 / 1.5}, TRACE),
        ({"repeat": 2}, CORRELATION),
        ({"fixed_key": True}, CORRELATION),
    ],
)
def test_planted_errors_are_found_for_every_key(plant, part):
    base = KINDS["label noise, one sample"]()
    noise = Planted(base, base.problem, **plant)
    assert all(part in failing(noise, key) for key in range(4))


def test_without_a_plant_nothing_fails():
    base = KINDS["label noise, one sample"]()
    assert failing(Planted(base, base.problem), 0) == set()


def test_an_estimated_covariance_is_allowed_its_error():
    """A covariance of 40 draws is wrong by a fifth; it passes as an estimate, and fails as an exact covariance."""
    noise = ut.SampledNoise(PROBLEM, DRAW, samples=40)
    assert not failing(noise, 0)
    exact = Planted(noise, PROBLEM)
    assert VARIANCE in failing(exact, 0)


def test_parts_of_a_sum_add_their_errors():
    noise = ut.SampledNoise(PROBLEM, DRAW, samples=64)
    sigma, form = noise.covariance(POINT), module._Squares(directions(jax.random.key(0), POINT))
    exact = ScaledIdentity(jnp.array(1.0), POINT)
    few = np.zeros((10, 18))
    alone = module._reference(sigma, form, few, False)
    np.testing.assert_allclose(np.sqrt(alone.variance), sigma.moment_error(form), rtol=1e-4)
    both = module._reference(Sum((exact, sigma, sigma)), form, few, False)
    np.testing.assert_allclose(both.variance, 2 * alone.variance)
    np.testing.assert_allclose(both.third, 2 * alone.third)


def test_the_error_of_a_population_is_that_of_its_moments():
    kind = "minibatch of a population"
    noise, point = KINDS[kind](), point_of(kind)
    sigma, form = noise.covariance(point), module._Squares(directions(jax.random.key(0), point))
    assert module._reference(sigma, form, np.zeros((10, 18)), False).variance == 0
    sampled = module._reference(sigma, form, np.zeros((10, 18)), True)
    np.testing.assert_allclose(np.sqrt(sampled.variance), sigma.moment_error(form), rtol=1e-3)


def test_a_mean_that_is_not_the_gradient_is_a_difference_and_no_failure():
    base = KINDS["label noise, one sample"]()
    biased = lambda key, p: trees.scale(1.5, base.draw(key, p))
    noise = ut.SampledNoise(base.problem, biased, samples=1024, unbiased=False)
    values = {s.name: s for s in compared(noise, POINT, 0, 4096)}
    other = values["mean of the draws: problem.gradient"]
    assert not other.required
    assert np.abs(other.z).max() > 5
    assert failing(noise, 0) == set()
    wrong = ut.SampledNoise(base.problem, biased, samples=1024)
    assert MEAN in failing(wrong, 0)


def test_many_params_have_no_traces():
    size = 2**14 + 1
    bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    names = [s.name for s in compared(ut.Isotropic(bowl, 0.1), jnp.ones(size), 0, draws=128)]
    assert names == [MEAN, CORRELATION, VARIANCE]
