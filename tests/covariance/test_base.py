"""The interface of a covariance, tested for that of every kind of noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests import dense
from tests.kinds import KINDS, params, problem
from tests.kinds import point as point_of
from tests.mistakes import assert_explained
from tests.moments import DRAWS, flat_operator, largest_z, probes, threshold
from undertow import _trees as trees
from undertow.covariance import AbstractCovariance, Factored, Projected
from undertow.covariance.base import quadratic_form, sum_over, trace_of

kinds = pytest.mark.parametrize("kind", KINDS)


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


POINT = params()

MISTAKES = {
    "no probes": (
        lambda: ut.Isotropic(problem()).covariance(POINT).trace_estimate(0, probes=0),
        r"`trace_estimate\(probes=0\)`: `probes` must be at least 1",
    ),
    "no key for a draw": (
        lambda: ut.Isotropic(problem()).covariance(POINT).gaussian(None),
        r"`gaussian\(key=None\)`: give one key, `key=jax.random.key\(0\)`",
    ),
    "the old square root": (lambda: ut.Isotropic(problem()).covariance(POINT).root, "called `sqrt_mv` now"),
    "the old shapes of normals": (lambda: ut.Isotropic(problem()).covariance(POINT).white, "called `normal_structure`"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])


COLUMNS = np.random.default_rng(7).normal(size=(5, 4))
OTHER = np.random.default_rng(9).normal(size=(5, 5))


@pytest.fixture
def like(x64):
    """Params of five numbers in two leaves."""
    return {"a": jnp.zeros((2, 2)), "b": jnp.zeros(())}


@pytest.fixture
def sigma(x64):
    """A covariance of rank four."""
    return Factored({"a": jnp.asarray(COLUMNS[:4].reshape(2, 2, 4)), "b": jnp.asarray(COLUMNS[4])})


def as_map(array):
    """Return a matrix as a linear map of vectors like params."""

    def apply(v):
        flat, unravel = jax.flatten_util.ravel_pytree(v)
        return unravel(jnp.asarray(array) @ flat)

    return apply


def test_a_projected_covariance_is_the_product_of_matrices(sigma, like):
    """M Sigma M for a symmetric M that is no projector, so that the number of factors M shows."""
    middle = np.random.default_rng(8).normal(size=(5, 5))
    middle = middle + middle.T
    projected = Projected(sigma, as_map(middle))
    expected = middle @ COLUMNS @ COLUMNS.T @ middle
    dense.assert_covariance(projected, like, expected)


def test_the_parts_of_a_split_add_up_to_the_covariance(sigma, like):
    q = np.linalg.qr(np.random.default_rng(2).normal(size=(5, 2)))[0]
    split = sigma.split(as_map(q @ q.T))
    mixed = dense.matrix(split.mixed, like)
    total = dense.matrix(split.tangent.mv, like) + dense.matrix(split.normal.mv, like) + mixed + mixed.T
    np.testing.assert_allclose(total, COLUMNS @ COLUMNS.T, rtol=1e-10)


def test_sums_and_traces_by_unit_vectors(like):
    total = sum_over(lambda i: {"cube": i**3, "one": jnp.ones(2)}, 5)
    assert int(total["cube"]) == 0 + 1 + 8 + 27 + 64
    np.testing.assert_array_equal(total["one"], [5.0, 5.0])
    np.testing.assert_allclose(trace_of(as_map(OTHER), like), np.trace(OTHER), rtol=1e-12)
    x = {"a": jnp.ones((2, 2)), "b": jnp.array(2.0)}
    flat = np.array([1.0, 1.0, 1.0, 1.0, 2.0])
    np.testing.assert_allclose(quadratic_form(as_map(OTHER))(x), flat @ OTHER @ flat, rtol=1e-12)
    assert float(quadratic_form(None)(x)) == 8


def test_an_estimated_trace_covers_the_exact_one(sigma):
    """The standard error for a symmetric A is sqrt(2 Tr[(Sigma A)^2] / probes)."""
    diagonal = np.diag([1.0, 2.0, 0.5, 3.0, 1.0])
    product = COLUMNS @ COLUMNS.T @ diagonal
    estimate = sigma.trace_estimate(jax.random.key(1), as_map(diagonal), probes=2000)
    exact_error = np.sqrt(2 * np.trace(product @ product) / 2000)
    assert abs(estimate.value - np.trace(product)) < 5 * exact_error
    assert 0.8 < estimate.standard_error / exact_error < 1.25
    assert estimate.samples == 2000


def test_a_covariance_without_its_methods_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        AbstractCovariance()
