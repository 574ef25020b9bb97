"""A noise from draws: its mean and covariance, the levels that use it, and dropout as an example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests import dense
from tests.kinds import params, population, problem, scaled_sample_gradient
from tests.mistakes import assert_explained
from undertow import _trees as trees
from undertow.symmetry.powers import powers

POINT = params()
DRAW = scaled_sample_gradient(problem())


def test_the_covariance_is_that_of_the_fixed_draws(x64):
    task, point = problem(jnp.float64), params(dtype=jnp.float64)
    draw = scaled_sample_gradient(task)
    noise = ut.SampledNoise(task, draw, samples=50, key=4)
    rows = jax.vmap(lambda key: trees.ravel(draw(key, point)))(jax.random.split(jax.random.key(4), 50))
    dense.assert_covariance(noise.covariance(point), point, np.cov(np.asarray(rows).T), atol=1e-12)
    np.testing.assert_allclose(jax.vmap(trees.ravel)(noise.sampled_gradients(point)), rows, atol=1e-12)


def test_the_covariance_is_a_function_of_params_and_the_key_alone():
    one, again, other = (ut.SampledNoise(problem(), DRAW, samples=20, key=key) for key in (1, jax.random.key(1), 2))
    trace = lambda noise: float(noise.covariance(POINT).trace())
    assert trace(one) == trace(again) != trace(other)
    assert one.samples == one.covariance(POINT).samples == 20


def test_the_mean_is_the_gradient_or_the_average_of_the_draws():
    noise = ut.SampledNoise(problem(), DRAW, samples=30)
    assert noise.mean_samples is None
    np.testing.assert_array_equal(trees.ravel(noise.mean(POINT)), trees.ravel(problem().gradient(POINT)))
    biased = ut.SampledNoise(problem(), DRAW, samples=30, unbiased=False)
    assert biased.mean_samples == 30
    rows = jax.vmap(lambda key: trees.ravel(DRAW(key, POINT)))(biased.keys)
    np.testing.assert_allclose(trees.ravel(biased.mean(POINT)), rows.mean(axis=0), rtol=1e-5, atol=1e-7)


def test_the_draws_are_computed_in_chunks(monkeypatch):
    """A budget of three gradients gives the same covariance."""
    noise = ut.SampledNoise(problem(), DRAW, samples=20)
    whole = noise.covariance(POINT).trace()
    monkeypatch.setattr("undertow._chunks.BUDGET_BYTES", 3 * trees.floats_bytes(POINT))
    np.testing.assert_allclose(noise.covariance(POINT).trace(), whole, rtol=1e-5)


PRODUCT = ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))
BALANCE = ut.Rescaling(lambda p: p["u"], lambda p: p["w"])
START = {"u": jnp.array(2.0), "w": jnp.array(0.5)}


def one_sample(key, p):
    """Draw minibatch noise of one sample by hand."""
    return PRODUCT.batch_gradient(p, jax.random.randint(key, (), 0, 2))


def test_sgd_is_that_of_the_draws():
    """The stationary variance on a bowl with curvature 1 is eta s^2/(2 - eta) for noise of variance s^2."""
    bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    noise = ut.SampledNoise(bowl, lambda key, w: w + 0.3 * jax.random.rademacher(key, w.shape, w.dtype), samples=400)
    eta, square = 0.1, {"square": lambda w: jnp.mean(w**2)}
    run = ut.descend(noise, jnp.zeros(4), step_size=eta, steps=4000, key=0, seeds=8, every=2000, average=square)
    np.testing.assert_allclose(run.observed["square"][:, -1].mean(), eta * 0.09 / (2 - eta), rtol=0.1)
    sde = ut.diffuse(noise, jnp.zeros(4), step_size=eta, time=400.0, key=0, seeds=8, every=2000, average=square)
    np.testing.assert_allclose(sde.observed["square"][:, -1].mean(), eta * 0.09 / 2, rtol=0.25)


def test_the_sde_follows_the_mean_of_biased_draws():
    """Draws with mean 2w halve the time scale of the bowl: w(t) = exp(-2t)."""
    bowl = ut.Problem(lambda w, _: jnp.sum(w**2) / 2, jnp.zeros(1))
    draw = lambda key, w: 2 * w + 1e-3 * jax.random.normal(key, w.shape, w.dtype)
    noise = ut.SampledNoise(bowl, draw, samples=16, unbiased=False)
    run = ut.diffuse(noise, jnp.ones(3), step_size=0.01, time=1.0, key=0)
    np.testing.assert_allclose(run.params, np.exp(-2) * np.ones(3), rtol=0.02)


def test_the_noether_flow_has_the_error_of_the_estimate():
    exact = ut.noether_flow(ut.Minibatch(PRODUCT, 1), START, BALANCE, step_size=0.1)
    flows = [
        ut.noether_flow(ut.SampledNoise(PRODUCT, one_sample, samples=200, key=k), START, BALANCE, step_size=0.1)
        for k in range(12)
    ]
    rates = np.array([float(flow.rate) for flow in flows])
    errors = np.array([float(flow.standard_error) for flow in flows])
    assert np.all(errors > 0)
    assert np.all(np.abs(rates - float(exact.rate)) < 5 * errors + 1e-3)
    np.testing.assert_allclose(flows[0].gradient, exact.gradient, rtol=1e-5)
    assert float(exact.standard_error) == 0


def test_the_error_of_the_flow_is_the_spread_over_keys():
    """Draws (1 + z) w with a normal z: the noise is not two-valued, so that the estimate varies."""
    draw = lambda key, p: trees.scale(1 + jax.random.normal(key), PRODUCT.gradient(p))
    noises = [ut.SampledNoise(PRODUCT, draw, samples=300, key=k) for k in range(60)]
    parts = [powers(noise, {"u": jnp.array(2.0), "w": jnp.array(1.0)}, BALANCE) for noise in noises]
    spread = np.std([float(p.plus - p.minus) for p in parts], ddof=1)
    assert 0.7 < np.mean([float(p.error) for p in parts]) / spread < 1.4


def test_the_equilibrium_is_that_of_the_exact_covariance():
    exact = ut.equilibrium(ut.Minibatch(PRODUCT, 1), START, BALANCE, step_size=0.1).params
    sampled = ut.equilibrium(ut.SampledNoise(PRODUCT, one_sample, samples=64), START, BALANCE, step_size=0.1).params
    for name in exact:
        np.testing.assert_allclose(sampled[name], exact[name], rtol=1e-3)


def test_the_limit_is_that_of_the_exact_covariance(x64):
    circle = ut.Problem(lambda x, _: (jnp.sum(x**2) - 1) ** 2 / 8, jnp.zeros(1))
    draw = lambda key, x: circle.gradient(x) + 0.3 * jax.random.normal(key, x.shape, x.dtype)
    noise, point = ut.SampledNoise(circle, draw, samples=20_000), jnp.array([0.6, 0.8])
    exact = ut.Limit(ut.Isotropic(circle, 0.3)).drift(point)
    np.testing.assert_allclose(ut.Limit(noise).drift(point), exact, atol=0.05 * float(jnp.linalg.norm(exact)))


KEEP = 0.8


def hidden(p, x):
    return jnp.tanh(p["inner"] @ x)


INPUTS = jax.random.normal(jax.random.key(1), (12, 3))
PLAIN = ut.Regression(lambda p, x: jnp.vdot(p["outer"], hidden(p, x)), INPUTS, jnp.sin(INPUTS[:, 0]))


def dropout_loss(p, sample, key):
    x, y = sample
    mask = jax.random.bernoulli(key, KEEP, p["outer"].shape) / KEEP
    return (jnp.vdot(p["outer"] * mask, hidden(p, x)) - y) ** 2 / 2


def dropout_draw(key, p):
    """Draw the gradient of all samples with one mask each."""
    keys = jax.random.split(key, 12)
    return jax.grad(lambda q: jnp.mean(jax.vmap(lambda s, k: dropout_loss(q, s, k))(PLAIN.data, keys)))(p)


def expected_loss(p, sample):
    """Return the mean of the dropout loss over the masks: the loss plus (1 - q)/(2 q) sum_j (outer_j hidden_j)^2."""
    x, _ = sample
    return PLAIN.sample_loss(p, sample) + (1 - KEEP) / KEEP / 2 * jnp.sum((p["outer"] * hidden(p, x)) ** 2)


def test_dropout_with_the_expected_loss_passes_the_check():
    expected = ut.Problem(expected_loss, PLAIN.data)
    assert ut.check_noise(ut.SampledNoise(expected, dropout_draw, samples=256), POINT, draws=1024).passed


def test_dropout_without_it_fails_unless_it_is_called_biased():
    with pytest.raises(ut.noise.NoiseCheckError, match="mean of the draws"):
        ut.check_noise(ut.SampledNoise(PLAIN, dropout_draw, samples=256), POINT)
    result = ut.check_noise(ut.SampledNoise(PLAIN, dropout_draw, samples=256, unbiased=False), POINT)
    (row,) = [row for row in result.rows if row.status == "differs"]
    assert row.name == "mean of the draws: problem.gradient"


MISTAKES = {
    "a population": (
        lambda: ut.SampledNoise(population(), DRAW),
        "`SampledNoise`: the full gradient of a `Population`",
    ),
    "no function": (
        lambda: ut.SampledNoise(problem(), 3.0),
        r"`SampledNoise\(draw=3\.0\)`: `draw` is a float; give a function",
    ),
    "one sample": (
        lambda: ut.SampledNoise(problem(), DRAW, samples=1),
        r"`SampledNoise\(samples=1\)`: `samples` must be at least 2",
    ),
    "no samples": (lambda: ut.SampledNoise(problem(), DRAW, samples=0), r"`SampledNoise\(samples=0\)`"),
    "no key": (lambda: ut.SampledNoise(problem(), DRAW, key=None), r"`SampledNoise\(key=None\)`"),
    "another structure": (
        lambda: ut.SampledNoise(problem(), lambda key, p: p["inner"]).check(POINT),
        "`SampledNoise`: `draw\\(key, params\\)` is ",
    ),
    "another shape": (
        lambda: ut.SampledNoise(problem(), lambda key, p: p | {"outer": p["outer"][:1]}).check(POINT),
        r"`draw\(key, params\)` has shape \(1,\) for `outer`, which has shape \(2,\)",
    ),
    "another type": (
        lambda: ut.SampledNoise(problem(), lambda key, p: trees_half(p)).check(POINT),
        "has dtype float16 for `.*`, which has float32",
    ),
}


def trees_half(p):
    return jax.tree.map(lambda x: x.astype(jnp.float16), p)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake, as_a_user):
    assert_explained(*MISTAKES[mistake])
