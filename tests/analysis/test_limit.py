"""The predicted path after zero loss against a closed form, and the reasons where there is none."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from undertow.analysis.limit import predict_path

HYPERBOLA = ut.Regression(lambda p, x: p["u"] * p["v"] * x, jnp.array([1.0]), jnp.array([1.0]))


def point(u, v):
    return {"u": jnp.array(u), "v": jnp.array(v)}


@pytest.mark.parametrize(
    ("noise", "power"),
    [(ut.Minibatch(HYPERBOLA, 1), 1.0), (ut.LabelNoise(HYPERBOLA, 0.5), 0.25)],
    ids=["minibatches", "label noise of strength 1/2"],
)
@pytest.mark.parametrize("start", [(2.0, 0.5), (3.0, 0.2)], ids=["at zero loss", "before zero loss"])
def test_the_path_on_a_hyperbola_is_the_closed_form(noise, power, start):
    """On uv = 1 the charge C = (u^2 - v^2)/2 falls by dC/d slow_time = -strength^2 C, and Tr H = 2 sqrt(1 + C^2).

    Gradient flow keeps C, so the path of a start off the hyperbola has the charge of that start.
    """
    found = predict_path(noise, point(*start), 0.1)
    assert found.path is not None
    charge = (start[0] ** 2 - start[1] ** 2) / 2 * np.exp(-power * np.asarray(found.path.slow_time))
    np.testing.assert_allclose(found.path.trace, 2 * np.sqrt(1 + charge**2), rtol=1e-5)
    np.testing.assert_allclose(found.path.steps(0.1), np.asarray(found.path.slow_time) * 100)
    assert found.path.trace[-1] < 2.2  # the path ends near the flattest minimum, where Tr H = 2
    assert f"Tr H falls from {found.path.trace[0]:.3g} to {found.path.trace[-1]:.3g}" in found.sentence
    assert ("strength 1" in found.sentence) == (power == 1.0)


def regression(predict, outputs=1, samples=1):
    x = jax.random.normal(jax.random.key(0), (samples,))
    return ut.Regression(predict, x, jnp.zeros((samples, outputs)) if outputs > 1 else jnp.zeros(samples))


REASONS = {
    "no least squares": (
        ut.Problem(lambda p, x: (p["u"] * p["v"] - x) ** 2, jnp.ones(3)), point(2.0, 0.5),
        r"the problem is a Problem, .* `Regression\(predict, x, y\)`",
    ),
    "too many equations": (
        regression(lambda p, x: p["u"] * p["v"] * x, samples=2), point(2.0, 0.5), "2 equations for 2 parameters",
    ),
    "kinks": (regression(lambda p, x: jax.nn.relu(p["u"]) * p["v"]), point(2.0, 0.5), r"the loss has kinks \(relu\)"),
    "residuals that stay": (
        regression(lambda p, x: 1 + p["u"] ** 2 + p["v"] ** 2), point(0.3, 0.2), "ends at the loss 0.5, not at zero",
    ),
    "no minimum": (regression(lambda p, x: jnp.exp(-p["u"] - p["v"])), point(0.3, 0.2), "ill-conditioned.*ut.average"),
    "single precision only": (
        regression(lambda p, x: jax.lax.mul(p["u"], jnp.ones((), jnp.float32)) * p["v"]), point(2.0, 0.5),
        "the loss cannot be computed in double precision",
    ),
    "a large model": (
        regression(lambda p, x: jnp.sum(p["u"]) * p["v"]), {"u": jnp.ones(1000), "v": jnp.array(1.0)},
        r"more than 1,000 parameters.* `Limit\(LabelNoise\(problem\)\)\.solve\(settle\(problem, params\)",
    ),
    "flattest minimum": (HYPERBOLA, point(1.0, 1.0), "Tr H is stationary"),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS)
def test_without_a_path_the_sentence_says_why(case):
    problem, params, words = REASONS[case]
    found = predict_path(ut.Minibatch(problem, 1), params, 0.1)
    assert found.path is None
    assert found.sentence.startswith("The slow motion after zero loss is not predicted: ")
    assert re.search(words, found.sentence), found.sentence
