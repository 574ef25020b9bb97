"""The exact law of matrix sensing against measurements drawn one by one, and the measures of a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp

import undertow as ut
from undertow.sensing import matrix_sensing as sensing
from undertow.sensing.ensembles import Correlated, MatrixNormal
from undertow.sensing.laws import Table, Uniform
from undertow.sensing.measurements import FreshMeasurements


def _ensembles() -> dict:
    factor = jax.random.normal(jax.random.key(7), (2, 4, 4)) / 2 + jnp.eye(4)[None]
    some = jax.random.normal(jax.random.key(8), (12, 4, 4)) / 3
    return {"goe": "goe", "full": "full", "matrix normal": MatrixNormal(*factor), "correlated": Correlated(some)}


ENSEMBLES = _ensembles()
LAWS = {
    "table": (Table([[-1.0], [2.0]], [0.3, 0.7]), None),
    "density": (Uniform(-1.0, 2.0), None),
    "off the diagonal": (Table([[-1.0, 1.0, 0.8], [2.0, 0.5, -0.6]], [0.3, 0.7]), 2),
}
FAST = {("goe", "table"), ("goe", "density"), ("correlated", "off the diagonal")}


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(
    ("ensemble", "law"),
    [
        pytest.param(e, name, marks=() if (e, name) in FAST else pytest.mark.slow, id=f"{e}, {name}")
        for e in ENSEMBLES
        for name in LAWS
    ],
)
def test_the_law_is_that_of_explicit_measurements(law, ensemble, pooled):
    law, rank = LAWS[law]
    noise = ut.MatrixSensing(
        4, 5, law, spurious_rank=rank, pooled=pooled, ensemble=ENSEMBLES[ensemble], key=jax.random.key(3)
    )
    explicit = FreshMeasurements(noise, chunk=3)
    point = jax.random.normal(jax.random.key(4), (4, 2))
    draws = lambda source, key: np.asarray(
        jax.jit(jax.vmap(lambda k: source.draw(k, point)))(jax.random.split(jax.random.key(key), 20_000))
    )
    exact, sampled = draws(noise, 0), draws(explicit, 1)
    fixed = jax.random.normal(jax.random.key(5), (3, 4, 2))
    see = lambda g: np.concatenate(
        [np.einsum("nij,kij->nk", g, fixed), np.linalg.norm(g, axis=(1, 2))[:, None]], axis=1
    )
    least = min(ks_2samp(a, b).pvalue for a, b in zip(see(exact).T, see(sampled).T, strict=True))
    assert least > 1e-4 / 4
    # the second moment, from the covariance
    squares = (exact.astype(np.float64) ** 2).sum((1, 2))
    mean = noise.mean(point)
    expected = float(noise.covariance(point).trace()) + float(jnp.vdot(mean, mean))
    assert abs(squares.mean() - expected) < 5 * squares.std() / np.sqrt(len(squares))


def exact_covariance(noise, point):
    """Return the dense covariance of the gradient from the fourth moments of X and the environments one by one.

    <X, M> X has the second moment E X_a X_b X_c X_d contracted with M twice; Isserlis gives it from E X_a X_b, which is
    read off the linear map from normals to X.
    """
    d, law, m = noise.truth.shape[0], noise.law, noise.m
    white = np.zeros(noise.ensemble.normal_structure(d))
    jacobian = np.asarray(
        jax.jacobian(lambda w: noise.ensemble.sqrt_mv(w.reshape(white.shape), d).ravel())(white.ravel())
    )
    c = jacobian @ jacobian.T
    fourth = np.einsum("ab,cd->abcd", c, c) + np.einsum("ac,bd->abcd", c, c) + np.einsum("ad,bc->abcd", c, c)
    base = np.asarray(noise.problem.residual(point))
    targets = [(base - np.asarray(noise.problem.spurious(s))).ravel() for s in law.values]
    means = [c @ t for t in targets]
    seconds = [np.einsum("abcd,c,d->ab", fourth, t, t) for t in targets]
    shares = np.asarray(law.probabilities)
    mean = sum(p * g for p, g in zip(shares, means, strict=True))
    second = sum(p * s for p, s in zip(shares, seconds, strict=True))
    if noise.pooled:
        inside = (second - np.outer(mean, mean)) / m
    else:
        inside = sum(
            p * (s - np.outer(g, g)) / m + p * np.outer(g - mean, g - mean)
            for p, s, g in zip(shares, seconds, means, strict=True)
        )
    pull = lambda flat: jax.flatten_util.ravel_pytree(sensing.pull(flat.reshape(d, d), point))[0]
    onto = np.asarray(jax.jacobian(pull)(jnp.zeros(d * d)))
    return onto @ inside @ onto.T


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(("ensemble", "law"), [("goe", "off the diagonal"), ("full", "table"), ("correlated", "table")])
def test_the_covariance_is_that_of_its_fourth_moments(ensemble, law, pooled, x64):
    """Every entry agrees to rounding, for UU' - VV' with the first ensemble and for U alone with the others."""
    law, rank = LAWS[law]
    law = Table(law.values, np.array([0.3, 0.7]))  # in double precision
    noise = ut.MatrixSensing(
        4, 3, law, spurious_rank=rank, pooled=pooled, ensemble=_ensembles()[ensemble], key=jax.random.key(3)
    )
    point = jax.random.normal(jax.random.key(4), (4, 2))
    point = {"U": point, "V": point[:, :1] / 2} if ensemble == "goe" else point
    _, unravel = jax.flatten_util.ravel_pytree(point)
    sigma = noise.covariance(point)
    covariance = jax.jit(jax.vmap(lambda e: jax.flatten_util.ravel_pytree(sigma.mv(unravel(e)))[0]))(
        jnp.eye(jax.flatten_util.ravel_pytree(point)[0].size)
    )
    np.testing.assert_allclose(covariance, exact_covariance(noise, point), atol=1e-10)


def test_a_start_with_few_columns_recovers_the_same_matrix():
    """U with 3 of 20 columns reaches the same matrix as a square start, at a seventh of the operations."""
    sensing = ut.MatrixSensing(20, 8000, [[-7.0], [9.0]])
    run = ut.descend(sensing, sensing.start(1e-3, columns=3), step_size=0.05, steps=200, key=0, seeds=16,
                     observe={"measured": sensing.measure}, progress=False)  # fmt: skip
    medians = {name: np.median(values[:, -1]) for name, values in run.observed["measured"].items()}
    assert 0.95 < medians["true"] < 1.05
    assert medians["spurious"] < 1e-2


@pytest.mark.parametrize("columns", [None, 2])
def test_a_start_has_the_size_of_alpha_times_the_identity(columns):
    """|U|^2 = alpha^2 d, spread evenly over orthogonal columns."""
    noise = ut.MatrixSensing(6, 10, [[-4.0], [6.0]])
    u = noise.start(0.1, columns=columns)
    count = 6 if columns is None else columns
    assert u.shape == (6, count)
    np.testing.assert_allclose(u.T @ u, 0.01 * 6 / count * np.eye(count), atol=1e-7)
    signed = noise.start(0.1, columns=columns, signed=True)
    assert (signed["U"] == u).all()
    assert (signed["V"] == u).all()


def test_a_pooled_step_size_is_not_limited_by_the_largest_environment():
    ut.MatrixSensing(4, 100, [[-4.0], [6.0]], pooled=True).check_step_size(0.3)


def test_a_step_size_too_large_is_reported_before_the_run():
    sensing = ut.MatrixSensing(4, 100, [[-4.0], [6.0]])
    with pytest.warns(UserWarning, match=r"0\.3 \* 6 = 1\.8; above about 0\.9 runs diverge"):
        ut.descend(sensing, sensing.start(1e-3), step_size=0.3, steps=1, key=0, progress=False)


def test_the_measures_of_a_solution(x64):
    sensing = ut.MatrixSensing(6, 10, [[0.5]], spectrum=[2.0, 1.0])
    solution = jnp.zeros((6, 6)).at[0, 0].set(jnp.sqrt(2.0)).at[1, 1].set(1.0).at[2, 2].set(0.6).at[4, 4].set(0.5)
    measured = sensing.measure(solution)
    np.testing.assert_allclose(measured["true"], 1.0)
    np.testing.assert_allclose(measured["spurious"], 0.36)
    np.testing.assert_allclose(measured["rest"], 0.5)
    np.testing.assert_allclose(measured["to_invariant"], np.hypot(0.36, 0.25))
    np.testing.assert_allclose(measured["to_mean"], np.hypot(0.14, 0.25))


def test_the_overlap_is_the_largest_cosine_between_the_subspaces():
    flat = ut.MatrixSensing(6, 10, [[0.5, 1.0]], rank=3)
    assert float(flat.overlap) == 0
    drawn = ut.MatrixSensing(6, 10, [[0.5, 1.0]], rank=3, key=jax.random.key(0))
    cosines = np.linalg.svd(np.asarray(drawn.truth.T @ drawn.problem.directions), compute_uv=False)
    assert cosines[1] > 0.1  # so the largest cosine differs from the root of the sum of squares
    np.testing.assert_allclose(drawn.overlap, cosines[0], rtol=1e-5)
    np.testing.assert_allclose(drawn.truth.T @ drawn.truth, np.eye(3), atol=1e-5)
