"""The overparametrised linear model: its exact Phi, its exact limiting flow, its conserved quantities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.papers.zero_loss.models.linear import LinearModel, weights


@pytest.fixture
def model(x64):
    return LinearModel.draw(jax.random.key(0), d=20, n=10, sparsity=3, dtype=jnp.float64)


def random_start(model, seed):
    k = jax.random.split(jax.random.key(seed))
    return tuple(1 + 0.3 * jax.random.normal(key, model.truth.shape, jnp.float64) for key in k)


@pytest.mark.parametrize("seed", range(3))
def test_the_convex_problem_has_the_solution_of_gradient_flow(model, seed):
    start = random_start(model, seed)
    exact, flowed = model.settle(start), ut.settle(model.problem, start).params
    for a, b in zip(exact, flowed, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
    np.testing.assert_allclose(exact[0] * exact[1], start[0] * start[1], rtol=1e-10)  # conserved by the flow
    assert model.problem.loss(exact) < 1e-24


def test_u_v_decays_exponentially_under_label_noise(model):
    """d/dt (u_j v_j) = -delta^2 s_j u_j v_j in slow time; SGD follows it up to O(step_size)."""
    eta, steps = 2e-4, 100_000
    run = ut.descend(
        ut.LabelNoise(model.problem, 1.0), model.settle(model.start(1.0)), step_size=eta, steps=steps,
        key=jax.random.key(1), observe={"uv": lambda p: p[0] * p[1]}, seeds=16,
    )  # fmt: skip
    log = np.log(run.observed["uv"])
    rate = -(log[:, -1] - log[:, 0]).mean(0) / run.slow_time[-1]
    ratio = rate / np.asarray(model.rates())
    error = ((log[:, -1] - log[:, 0]).std(0) / 4) / run.slow_time[-1] / np.asarray(model.rates())
    assert np.all(np.abs(ratio - 1) < 5 * error + 0.02)


def test_boolean_inputs_and_sparsity(x64):
    model = LinearModel.draw(jax.random.key(3), d=12, n=5, sparsity=4, law="boolean")
    assert set(np.unique(model.problem.inputs)) == {-1.0, 1.0}
    assert np.count_nonzero(model.truth) == 4
    np.testing.assert_allclose(model.problem.targets, model.problem.inputs @ model.truth)
    np.testing.assert_allclose(model.rates(), 4.0)
    assert weights(model.start(0.7)).shape == (12,)
    with pytest.raises(ValueError, match="only 12 entries"):
        LinearModel.draw(jax.random.key(0), d=12, n=5, sparsity=13)


def test_a_start_can_be_traced(model):
    np.testing.assert_array_equal(jax.jit(lambda alpha: model.start(alpha))(0.3)[0], model.start(0.3)[0])
    assert jax.vmap(lambda alpha: model.start(alpha))(jnp.arange(3.0))[1].shape == (3, 20)
