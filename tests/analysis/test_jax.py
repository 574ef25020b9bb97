"""The analysis of a JAX problem: rows, sharpness, drift and advice."""

import jax
import jax.numpy as jnp
import pytest

import undertow as ut
from undertow.analysis import jax as jax_analysis
from undertow.analysis.jax import analyze
from undertow.symmetry.equilibrium import VanishingNoiseError


def test_a_model_without_symmetries_says_so():
    x = jax.random.normal(jax.random.key(0), (30, 2))
    problem = ut.Problem(lambda p, s: (p["o"] @ jnp.tanh(p["i"] @ s) - 1) ** 2, x)
    found = analyze(problem, {"i": jnp.ones((3, 2)) + x[:3], "o": jnp.ones(3)})
    assert found.rows == ()
    assert found.sentences[0].startswith("No exponential symmetry was found")
    assert found.sharpness[0] > 0


def test_noise_that_vanishes_is_recognised_by_the_type_of_the_error(monkeypatch):
    """The text of the error is for the reader only."""
    x = jax.random.normal(jax.random.key(0), (8, 2))
    problem = ut.Problem(lambda p, s: (p["out"] @ jax.nn.relu(p["in"] @ s) - s[0]) ** 2, x)
    params = {"in": jnp.ones((3, 2)), "out": jnp.full(3, 0.1)}

    def raise_error(error):
        def forecast(*args, **kwargs):
            raise error

        monkeypatch.setattr(jax_analysis, "forecast", forecast)

    raise_error(VanishingNoiseError("another text"))
    analysis = analyze(problem, params)
    assert analysis.symmetries
    assert analysis.forecast is None
    assert analysis.sentences[0].startswith("The noise vanishes along the symmetries")
    raise_error(ValueError("the noise vanishes along the symmetry"))
    with pytest.raises(ValueError, match="vanishes along the symmetry"):
        analyze(problem, params)


def test_a_regression_at_zero_loss_is_told_its_drift(x64):
    x = jax.random.normal(jax.random.key(0), (4, 3), jnp.float64)
    predict = lambda p, s: p["u"] @ jnp.tanh(p["w"] @ s)
    params = {"u": jnp.ones(5), "w": jax.random.normal(jax.random.key(1), (5, 3), jnp.float64)}
    exact = ut.Regression(predict, x, jax.vmap(lambda s: predict(params, s))(x))
    found = analyze(exact, params)
    assert found.drift is not None
    assert found.drift > 0
    assert any("label noise would move the model" in s for s in found.sentences)


def test_norms_that_only_grow_are_warned_of():
    x = jax.random.normal(jax.random.key(0), (30, 2))
    problem = ut.Problem(lambda p, s: (p["g"] * (p["v"] @ s) / jnp.linalg.norm(p["v"]) - 1) ** 2, x)
    found = analyze(problem, {"g": jnp.array(1.0), "v": jnp.array([1.0, 2.0])}, batch_size=2)
    assert any("only grows, without bound" in s for s in found.sentences)
