"""The exact law of matrix sensing against measurements drawn one by one, and what is measured of a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp

import undertow as ut
from undertow.noise.laws import Table, Uniform
from undertow.noise.sensing import explicit_gradient


@pytest.mark.parametrize("ensemble", ["goe", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("law", [Table([[-1.0], [2.0]], [0.3, 0.7]), Uniform(-1.0, 2.0)], ids=["table", "density"])
def test_the_law_is_that_of_explicit_measurements(law, pooled, ensemble):
    noise = ut.MatrixSensing(4, 5, law, pooled=pooled, ensemble=ensemble, key=jax.random.key(3))
    point = jax.random.normal(jax.random.key(4), (4, 2))

    def explicit(key):
        k1, k2 = jax.random.split(key)
        x = jax.random.normal(k1, (5, 4, 4))
        x = (x + jnp.swapaxes(x, 1, 2)) / 2 if ensemble == "goe" else x
        sizes = law.draw(k2, 5 if pooled else 1)
        return explicit_gradient(noise, point, x, jnp.broadcast_to(sizes, (5, 1)))

    draw = jax.jit(jax.vmap(lambda k: noise.draw(k, point)))(jax.random.split(jax.random.key(0), 20_000))
    plain = jax.jit(jax.vmap(explicit))(jax.random.split(jax.random.key(1), 20_000))
    fixed = jax.random.normal(jax.random.key(5), (3, 4, 2))
    see = lambda g: np.concatenate(
        [np.einsum("nij,kij->nk", g, fixed), np.linalg.norm(g, axis=(1, 2))[:, None]], axis=1
    )
    least = min(ks_2samp(a, b).pvalue for a, b in zip(see(draw).T, see(plain).T, strict=True))
    assert least > 1e-4 / 4


def test_the_loss_and_its_gradient(x64):
    law = Table([[-1.0, 0.5], [2.0, 1.0]], [0.25, 0.75])
    sensing = ut.MatrixSensing(5, 10, law, spectrum=[1.0, 0.5], key=jax.random.key(0))
    for point in (jnp.eye(5) * 0.3, {"U": jnp.eye(5) * 0.3, "V": 0.2 * jnp.ones((5, 2))}):
        product = (
            point @ point.T if not isinstance(point, dict) else point["U"] @ point["U"].T - point["V"] @ point["V"].T
        )
        by_hand = sum(
            p * jnp.sum((product - sensing.problem.signal - sensing.problem.spurious(s)) ** 2) / 4
            for p, s in zip(law.probabilities, law.values, strict=True)
        )
        np.testing.assert_allclose(sensing.problem.loss(point), by_hand, rtol=1e-10)
        auto = jax.grad(sensing.problem.loss)(point)
        for a, b in zip(jax.tree.leaves(auto), jax.tree.leaves(sensing.problem.gradient(point)), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_what_is_measured_of_a_run(x64):
    sensing = ut.MatrixSensing(6, 10, [[0.5]], spectrum=[2.0, 1.0])
    solution = jnp.zeros((6, 6)).at[0, 0].set(jnp.sqrt(2.0)).at[1, 1].set(1.0).at[2, 2].set(0.6).at[4, 4].set(0.5)
    seen = sensing.measure(solution)
    np.testing.assert_allclose(seen["true"], 1.0)
    np.testing.assert_allclose(seen["spurious"], 0.36)
    np.testing.assert_allclose(seen["rest"], 0.5)
    np.testing.assert_allclose(seen["to_invariant"], np.hypot(0.36, 0.25))
    np.testing.assert_allclose(seen["to_mean"], np.hypot(0.14, 0.25))


def test_subspaces():
    flat = ut.MatrixSensing(6, 10, [[0.5, 1.0]], rank=3)
    assert float(flat.overlap) == 0
    drawn = ut.MatrixSensing(6, 10, [[0.5, 1.0]], rank=3, key=jax.random.key(0))
    assert 0 < float(drawn.overlap) < 1
    np.testing.assert_allclose(drawn.truth.T @ drawn.truth, np.eye(3), atol=1e-5)
