"""The distributions of batches of sample indices: chi-squared tests at level 1e-5 on fixed keys."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import undertow as ut
from tests.kinds import GROUPS, WEIGHTS, params, problem
from undertow import _trees as trees
from undertow.noise import sampling
from undertow.sensing import laws

LEVEL = 1e-5


@pytest.mark.parametrize(("total", "size"), [(6, 2), (6, 5), (5, 5), (9, 1)])
def test_subsets_are_uniform(total, size):
    drawn = np.sort(np.asarray(sampling.subsets(jax.random.key(0), total, 60_000, size)), axis=1)
    assert np.all(np.diff(drawn, axis=1) > 0)
    assert drawn.min() >= 0
    assert drawn.max() < total
    kinds = list(itertools.combinations(range(total), size))
    counts = [np.sum(np.all(drawn == kind, axis=1)) for kind in kinds]
    assert sum(counts) == 60_000
    if len(kinds) > 1:
        assert chisquare(counts).pvalue > LEVEL


@pytest.mark.parametrize("total", [1, 2, 40, 4096, 5000])
def test_uniform_indices(total):
    drawn = np.asarray(sampling.uniform(jax.random.key(6), total, (100, 2000)))
    assert drawn.shape == (100, 2000)
    assert drawn.min() >= 0
    assert drawn.max() < total
    if total > 1:
        assert chisquare(np.bincount(drawn.ravel(), minlength=total)).pvalue > LEVEL


def test_the_largest_word_stays_in_range(monkeypatch):
    for word in (0, 2**32 - 1):
        monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype, word=word: jnp.full(shape, word, dtype))
        for total in (1, 3, 40, 4095, 4096):
            expected = 0 if word == 0 else total - 1
            assert np.all(sampling.uniform(jax.random.key(0), total, (3,)) == expected)


@pytest.mark.parametrize("total", [1, 2, 3, 40, 2999, 3000, 4095, 4096])
def test_indices_are_the_upper_half_of_a_product(total, monkeypatch):
    """index = floor(word * total / 2^32), in whole numbers of Python: at random words and where the index changes."""
    edges = [-(-k * 2**32 // total) + j for k in range(1, total) for j in (-1, 0)]
    random = np.random.default_rng(0).integers(0, 2**32, 20_000).tolist()
    words = [0, 2**32 - 1, *edges, *random]
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(np.array(words, np.uint32), dtype))
    expected = [word * total >> 32 for word in words]
    np.testing.assert_array_equal(sampling.uniform(jax.random.key(0), total, (len(words),)), expected)


def test_a_sample_of_weight_zero_is_never_drawn(monkeypatch):
    """At the ends of [0, 1) and at the edges between samples too."""
    weights = jnp.array([0.0, 0.25, 0.0, 0.75, 0.0])
    for number, expected in ((0.0, 1), (0.25, 3), (0.2499, 1), (1 - 2**-24, 3)):
        monkeypatch.setattr(jax.random, "uniform", lambda key, shape, dtype, x=number: jnp.full(shape, x, dtype))
        assert np.all(sampling.weighted(jax.random.key(0), weights, (3,)) == expected)


@pytest.mark.parametrize("probabilities", [[np.nan, 1.0], [np.inf, 0.0], [-0.5, 1.5], [0.5, 0.4], [1.0]])
def test_tables_have_probabilities(probabilities):
    with pytest.raises(ValueError, match=r"`Table`: `probabilities"):
        laws.Table([1.0, 2.0], probabilities)
    np.testing.assert_allclose(laws.Table([1.0, 2.0], [0, 1]).mean(), [2.0])


@pytest.mark.parametrize(("total", "size"), [(2, 1), (4, 3), (5, 2), (3, 3), (1, 1)])
def test_subsets_have_the_covariance_of_all_subsets(total, size, x64):
    """Against the mean over every subset there is."""
    values = np.arange(1.0, total + 1) ** 2
    task = ut.Problem(lambda w, x: w * x, jnp.asarray(values))
    means = np.array([values[list(kind)].mean() for kind in itertools.combinations(range(total), size)])
    noise = ut.Minibatch(task, size, replace=False)
    np.testing.assert_allclose(noise.covariance(jnp.array(0.0)).trace(), means.var(), rtol=1e-12, atol=1e-12)


def test_signs_are_fair_and_independent():
    drawn = np.asarray(sampling.signs(jax.random.key(7), (1000, 67), jnp.float32))
    assert set(np.unique(drawn)) == {-1.0, 1.0}
    pairs = 2 * (drawn[:, :-1] > 0) + (drawn[:, 1:] > 0)
    assert chisquare(np.bincount(pairs[:, ::2].ravel())).pvalue > LEVEL


def test_weighted_indices():
    weights = jnp.array([0.5, 0.125, 0.0, 0.25, 0.125])
    drawn = np.asarray(sampling.weighted(jax.random.key(1), weights, (80_000,)))
    counts = np.bincount(drawn, minlength=5)
    assert counts[2] == 0
    seen = [0, 1, 3, 4]
    assert chisquare(counts[seen], 80_000 * np.asarray(weights)[seen]).pvalue > LEVEL


def test_environments_are_drawn_by_weight_and_batches_stay_inside():
    hetero = ut.Environments(problem(), GROUPS, WEIGHTS, batch_size=4)
    batches = np.asarray(hetero.randomness(jax.random.key(2), 50_000))
    labels = np.asarray(GROUPS)[batches]
    assert np.all(labels == labels[:, :1])
    assert chisquare(np.bincount(labels[:, 0]), 50_000 * np.asarray(WEIGHTS, float)).pvalue > LEVEL
    for environment in range(3):
        inside = batches[labels[:, 0] == environment].ravel()
        counts = np.bincount(inside, minlength=7)[np.asarray(GROUPS) == environment]
        assert len(counts) == np.sum(np.asarray(GROUPS) == environment)
        assert chisquare(counts).pvalue > LEVEL


def test_pooled_batches_mix_by_weight():
    pooled = ut.Environments(problem(), GROUPS, WEIGHTS, batch_size=4).pooled()
    assert pooled.batch_size == 4
    drawn = np.asarray(pooled.randomness(jax.random.key(3), 20_000)).ravel()
    shares = np.asarray(WEIGHTS, float) / np.asarray(WEIGHTS, float).sum()
    expected = (shares / np.bincount(GROUPS))[np.asarray(GROUPS)]
    assert chisquare(np.bincount(drawn, minlength=7), len(drawn) * expected).pvalue > LEVEL


def test_hetero_and_pooled_have_one_problem(x64):
    hetero = ut.Environments(problem(jnp.float64), GROUPS, WEIGHTS, batch_size=2)
    point = params(dtype=jnp.float64)
    by_hand = sum(
        w * np.asarray(trees.ravel(hetero.environment_gradient(point, jnp.asarray(e)))) for e, w in enumerate(WEIGHTS)
    )
    np.testing.assert_allclose(trees.ravel(hetero.mean(point)), by_hand, rtol=1e-6)
    np.testing.assert_array_equal(trees.ravel(hetero.pooled().mean(point)), trees.ravel(hetero.mean(point)))
    plain = ut.Environments(problem(jnp.float64), GROUPS)
    np.testing.assert_allclose(
        trees.ravel(plain.mean(point)), trees.ravel(problem(jnp.float64).gradient(point)), rtol=1e-12
    )
    uneven = jnp.array([0, 1, 1, 1, 1, 1, 1])
    assert ut.Environments(problem(), uneven).pooled().batch_size == round(1 * 1 / 7 + 6 * 6 / 7)
    assert ut.Environments(problem(), uneven, [0.6, 0.4]).pooled().batch_size == round(1 * 0.6 + 6 * 0.4)


def test_between_and_within_add_up_to_pooled(x64):
    """The law of total variance: at size 1, HeteroSGD and PooledSGD have the same covariance."""
    hetero = ut.Environments(problem(jnp.float64), GROUPS, WEIGHTS, batch_size=1)
    point = params(dtype=jnp.float64)
    v = trees.standard_normal(jax.random.key(0), point)
    one, other = hetero.covariance(point).mv(v), hetero.pooled().covariance(point).mv(v)
    np.testing.assert_allclose(trees.ravel(one), trees.ravel(other), rtol=1e-9)


def test_environments_of_problems():
    task = problem()
    order = np.argsort(np.asarray(GROUPS), kind="stable")
    parts = [
        ut.Problem(task.function, trees.take(task.data, np.flatnonzero(np.asarray(GROUPS) == e))) for e in range(3)
    ]
    joined = ut.Environments.of(parts, weights=WEIGHTS, batch_size=2)
    np.testing.assert_array_equal(joined.groups, np.asarray(GROUPS)[order])
    whole = ut.Environments(task, GROUPS, WEIGHTS, batch_size=2)
    point = params()
    np.testing.assert_allclose(joined.problem.loss(point), whole.problem.loss(point), rtol=1e-6)
    np.testing.assert_allclose(joined.covariance(point).trace(), whole.covariance(point).trace(), rtol=1e-5)
