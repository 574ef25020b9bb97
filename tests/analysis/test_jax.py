"""`undertow analyze`: a file of one's own, as a table, a page, params at equilibrium and sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.cli.calls import call
from undertow.analysis import jax as jax_analysis
from undertow.analysis.jax import analyze
from undertow.symmetry.equilibrium import VanishingNoiseError

FILE = """
import jax, jax.numpy as jnp
import undertow as ut

x = jax.random.normal(jax.random.key(0), (60, 3))

def loss(p, sample):
    return (p["out"] @ jax.nn.relu(p["in"] @ sample + p["bias"]) - jnp.sin(sample[0])) ** 2

problem = ut.Problem(loss, x)
noise = ut.Minibatch(problem, 4)
params = {"in": jnp.ones((4, 3)) + 0.3 * x[:4], "bias": jnp.zeros(4), "out": jnp.full(4, 0.05)}
both = (noise, params)
def make():
    return both
nothing = 3
"""


@pytest.mark.parametrize("name", ["problem", pytest.param("make", marks=pytest.mark.slow)])
def test_a_file_of_ones_own(name, file, tmp_path, capsys):
    settings = ("--out", tmp_path / "out", "--step-size", 0.02, "--batch-size", 4)
    status, shown, _ = call(capsys, "analyze", f"{file}:{name}", *settings)
    assert status == 0
    assert "relaxes in about" in shown.replace("\n", " ")
    page = (tmp_path / "out" / "analysis.html").read_text()
    assert "rescaling of 4 neurons, bias, in against out" in page
    assert "in by taps" in page
    with np.load(tmp_path / "out" / "equilibrium.npz") as arrays:
        saved = dict(arrays)
    assert set(saved) == {"in", "bias", "out"}
    # the same function as before
    inputs = jax.random.normal(jax.random.key(5), (20, 3))
    first = jax.random.normal(jax.random.key(0), (60, 3))[:4]
    before = {"in": jnp.ones((4, 3)) + 0.3 * first, "out": jnp.full(4, 0.05)}
    value = lambda p, x: p["out"] @ jax.nn.relu(p["in"] @ x)
    for x in inputs:
        np.testing.assert_allclose(value({k: jnp.asarray(saved[k]) for k in saved}, x), value(before, x), rtol=1e-4)


BAD = {
    "no object named": ("mine.py", "name an object of the file"),
    "no such file": ("nowhere.py:problem", "there is no such file"),
    "no such object": ("mine.py:nope", "has no object 'nope'"),
    "something else": ("mine.py:nothing", "give a problem, a noise"),
    "no params": ("mine.py:problem --params weights", "has no variable 'weights'"),
    "a broken file": ("broken.py:x", "cannot be run: NameError"),
    "a negative decay": ("mine.py:problem --weight-decay -1", "give 0 or more"),
    "a step of zero": ("mine.py:problem --step-size 0", "above 0"),
}


@pytest.mark.parametrize("what", BAD)
def test_mistakes_are_sentences(what, file, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text("x = y\n")
    monkeypatch.chdir(tmp_path)
    line, sentence = BAD[what]
    status, _, complaint = call(capsys, "analyze", *line.split(), "--out", tmp_path / "out")
    assert status == 2
    assert sentence in complaint


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
