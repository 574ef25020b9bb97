"""The distributions of batches of sample indices: chi-squared tests at level 1e-5 on fixed keys."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from undertow.noise import sampling

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


def test_one_word_gives_32_signs():
    """No array of the computation is larger than the result."""
    program = jax.make_jaxpr(lambda key: sampling.signs(key, (8, 8), jnp.float32))(jax.random.key(0))
    assert max(value.aval.size for step in program.eqns for value in step.outvars) == 64


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
