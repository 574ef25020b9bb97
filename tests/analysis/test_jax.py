"""The analysis of a JAX problem: rows, sharpness, spectrum, path and advice."""

import jax
import jax.numpy as jnp
import numpy as np
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


def test_a_regression_that_fits_its_data_has_a_predicted_path():
    """The trace along the path starts at Tr H where the loss is zero, which the exact spectrum has as well."""
    x = jax.random.normal(jax.random.key(0), (2, 2))
    predict = lambda p, s: p["u"] @ jnp.tanh(p["w"] @ s)
    params = {"u": jnp.ones(3), "w": jax.random.normal(jax.random.key(1), (3, 2))}
    found = analyze(ut.Regression(predict, x, jax.vmap(lambda s: predict(params, s))(x)), params)
    assert found.path is not None
    assert sum(found.spectrum.eigenvalues) == pytest.approx(found.path.trace[0], rel=1e-4)
    assert found.sharpness == (pytest.approx(found.path.trace[0], rel=1e-4), 0.0)
    assert found.sentences[-1] == found.limit
    assert "label noise of strength 1 moves the model" in found.limit


def test_rows_have_the_sides_now_and_at_equilibrium():
    """Noise pushes up as much as down at the equilibrium, and the charges are those of the symmetry."""
    x = jax.random.normal(jax.random.key(0), (40, 2))
    problem = ut.Problem(lambda p, s: (p["out"] @ jax.nn.relu(p["in"] @ s) - s[0]) ** 2, x)
    params = {"in": jax.random.normal(jax.random.key(1), (3, 2)), "out": jnp.full(3, 0.1)}
    found = analyze(problem, params, step_size=0.05, weight_decay=0.02, batch_size=4)
    (row,), (symmetry,) = found.rows, found.symmetries
    np.testing.assert_allclose(row.now.charges, symmetry.charge(params), rtol=1e-5)
    np.testing.assert_allclose(row.then.charges, found.forecast.equilibrium.charge[0], rtol=1e-4, atol=1e-6)
    up, down = row.then.pushes(0.05, 0.02)
    np.testing.assert_allclose(up, down, rtol=1e-3)
    flow = ut.noether_flow(ut.Minibatch(problem, 4), params, symmetry, step_size=0.05, weight_decay=0.02)
    up, down = row.now.pushes(0.05, 0.02)
    np.testing.assert_allclose(0.05 / 2 * (up - down), flow.rate, rtol=1e-4)
    times = found.forecast.equilibrium.relaxation_steps[0]
    assert row.relaxation == pytest.approx(np.median(times), rel=1e-6)
    assert row.slowest == pytest.approx(times.max(), rel=1e-6)


def test_norms_that_only_grow_are_warned_of():
    x = jax.random.normal(jax.random.key(0), (30, 2))
    problem = ut.Problem(lambda p, s: (p["g"] * (p["v"] @ s) / jnp.linalg.norm(p["v"]) - 1) ** 2, x)
    found = analyze(problem, {"g": jnp.array(1.0), "v": jnp.array([1.0, 2.0])}, batch_size=2)
    assert any("only grows, without bound" in s for s in found.sentences)
