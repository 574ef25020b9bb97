"""HeteroSGD: the law of its batches, its pooled version, and the parts of its covariance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import undertow as ut
from tests import dense
from tests.kinds import GROUPS, WEIGHTS, params, population, problem
from tests.mistakes import assert_explained
from undertow import _chunks as chunks
from undertow import _trees as trees

LEVEL = 1e-5  # of a false alarm in one chi-squared test, on fixed keys


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


def test_the_mean_size_of_environments_is_not_known_inside_jit():
    hetero = ut.Environments(problem(), GROUPS)
    with pytest.raises(ValueError, match=r"`Environments.pooled\(\)`.*give `batch_size=`"):
        eqx.filter_jit(lambda noise: noise.pooled().covariance(params()).trace())(hetero)
    eqx.filter_jit(lambda noise: noise.pooled(2).covariance(params()).trace())(hetero)


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


POINT = params()


@pytest.fixture
def by_hand(x64):
    """A noise with batches of two in weighted environments, and the sample gradients of each environment."""
    hetero = ut.Environments(problem(jnp.float64), GROUPS, WEIGHTS, batch_size=2)
    point = params(dtype=jnp.float64)
    gradients = dense.sample_gradients(problem(jnp.float64), point)
    return hetero, point, [gradients[np.asarray(GROUPS) == e] for e in range(3)]


def test_the_gradient_of_an_environment_is_the_mean_over_its_samples(by_hand):
    hetero, point, groups = by_hand
    drawn = jax.jit(jax.vmap(lambda e: trees.ravel(hetero.environment_gradient(point, e))))(jnp.arange(3))
    np.testing.assert_allclose(drawn, [rows.mean(0) for rows in groups], rtol=1e-10)


def test_the_gradient_of_an_environment_is_the_same_in_chunks(by_hand, monkeypatch):
    hetero, point, groups = by_hand
    monkeypatch.setattr(chunks, "BUDGET_BYTES", 2 * (trees.floats_bytes(point) + 32))
    assert hetero.problem.chunk(point) == 2
    drawn = jax.jit(jax.vmap(lambda e: trees.ravel(hetero.environment_gradient(point, e))))(jnp.arange(3))
    np.testing.assert_allclose(drawn, [rows.mean(0) for rows in groups], rtol=1e-10)


def test_the_covariance_has_a_part_between_environments_and_one_within(by_hand):
    """sum_e w_e (g_e - g)(g_e - g)' and sum_e w_e Cov_e / batch_size, from NumPy."""
    hetero, point, groups = by_hand
    weights = np.asarray(WEIGHTS, float) / np.asarray(WEIGHTS, float).sum()
    means = np.stack([rows.mean(0) for rows in groups])
    between = np.cov(means.T, aweights=weights, bias=True)
    within = sum(w * np.cov(rows.T, bias=True) for w, rows in zip(weights, groups, strict=True)) / 2
    np.testing.assert_allclose(dense.matrix(hetero.between(point).mv, point), between, atol=1e-7)
    np.testing.assert_allclose(dense.matrix(hetero.within(point).mv, point), within, atol=1e-7)
    np.testing.assert_allclose(dense.matrix(hetero.covariance(point).mv, point), between + within, atol=1e-7)


def test_padding_is_not_a_sample():
    """One environment of a single sample beside one of six: all rows of the first are that sample."""
    hetero = ut.Environments(problem(), jnp.array([1, 1, 0, 1, 1, 1, 1]))
    assert hetero.count == 2
    np.testing.assert_array_equal(hetero.sizes, [1, 6])
    np.testing.assert_array_equal(hetero.members, [[2] * 6, [0, 1, 3, 4, 5, 6]])
    drawn = trees.ravel(eqx.filter_jit(hetero.environment_gradient)(POINT, jnp.asarray(0)))
    np.testing.assert_allclose(drawn, dense.sample_gradients(problem(), POINT)[2], rtol=1e-5)


X = jnp.arange(3.0)


def quadratic(w, x):
    return jnp.sum((w - x) ** 2)


MISTAKES = {
    "a problem with weights": (
        lambda: ut.Environments(problem().reweight(jnp.full(7, 1 / 7)), GROUPS),
        "reweighted already; give the plain one and `weights=`",
    ),
    "environments with weights": (
        lambda: ut.Environments.of([ut.Problem(quadratic, X).reweight(jnp.full(3, 1 / 3))]),
        "problem 0 is reweighted; give plain problems",
    ),
    "a batch of none": (
        lambda: ut.Environments(problem(), GROUPS, batch_size=0),
        r"`Environments\(batch_size=0\)`: `batch_size` must be at least 1",
    ),
    "the old name in `of`": (
        lambda: ut.Environments.of([ut.Problem(quadratic, X)], size=2),
        r"`Environments\.of\(size=\.\.\.\)`",
    ),
    "the old name in `pooled`": (
        lambda: ut.Environments(problem(), GROUPS).pooled(size=2),
        r"`Environments\.pooled\(size=\.\.\.\)`",
    ),
    "the old attribute of the batch size": (
        lambda: ut.Environments(problem(), GROUPS, batch_size=2).size,
        "called `batch_size` now",
    ),
    "the old name of the batch size": (lambda: ut.Environments(problem(), GROUPS, size=2), "called `batch_size` now"),
    "a group without data": (
        lambda: ut.Environments(problem(), jnp.array([0, 0, 2, 2, 2, 0, 0])),
        "group 1 has no data.*return_inverse",
    ),
    "groups of another length": (lambda: ut.Environments(problem(), jnp.zeros(3, int)), "one label each"),
    "masked groups": (
        lambda: ut.Environments(problem(), np.ma.array(np.arange(7) % 2, mask=np.arange(7) == 3)),
        "`groups` has masked labels",
    ),
    "groups that are names": (lambda: ut.Environments(problem(), np.array(list("abcabca"))), "whole numbers"),
    "a negative group": (lambda: ut.Environments(problem(), jnp.array([0, -1, 0, 0, 0, 0, 0])), "holds -1"),
    "weights that do not sum to 1": (
        lambda: ut.Environments(problem(), GROUPS, weights=[0.5, 0.5, 0.5]),
        "sum to 1 .they sum to 1.5.; divide by the sum",
    ),
    "a negative weight": (lambda: ut.Environments(problem(), GROUPS, [1.5, -0.5, 0.0]), "must be positive"),
    "weights of another length": (lambda: ut.Environments(problem(), GROUPS, weights=[0.5, 0.5]), "give one each"),
    "environments of a population": (
        lambda: ut.Environments(population(), GROUPS),
        "`problem` is a Population; give a Problem",
    ),
    "environments with different losses": (
        lambda: ut.Environments.of([ut.Problem(quadratic, X), ut.Problem(lambda w, x: w, X)]),
        "the same function",
    ),
    "environments with different samples": (
        lambda: ut.Environments.of([ut.Problem(quadratic, X), ut.Problem(quadratic, jnp.zeros((3, 2)))]),
        "the samples of problem 1 have shapes and types",
    ),
    "no environments": (lambda: ut.Environments.of([]), "at least one"),
    "the noise within whole environments": (
        lambda: ut.Environments(problem(), GROUPS).within(POINT),
        "give `batch_size=`",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
