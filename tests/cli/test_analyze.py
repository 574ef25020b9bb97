"""`undertow analyze`: a file of one's own, as a table, a page, params at equilibrium and sentences."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import undertow as ut
from tests.analysis.analyses import analysis_of
from tests.cli.calls import call
from undertow.analysis.target import JaxTarget

PROBLEM = ut.Problem(lambda p, s: (p - s) ** 2, jnp.zeros(3))

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


def test_the_analysis_gets_the_options_and_the_pages_are_named(tmp_path, monkeypatch, capsys):
    """Without the numerics: the options reach `analyze`, stages go to stderr, and the files are printed."""
    calls = []

    def analyze(noise, params, *, report, **options):
        report("looking for symmetries")
        calls.append((noise, params, options))
        return analysis_of()

    monkeypatch.setattr("undertow.analysis.jax.analyze", analyze)
    monkeypatch.setattr("undertow.analysis.target.load", lambda target, params: JaxTarget(PROBLEM, (target, params)))
    options = "--step-size 0.5 --weight-decay 0.25 --batch-size 3 --seed 7 --params weights"
    status, out, err = call(capsys, "analyze", "größe.py:problem", *options.split(), "--out", tmp_path / "out")
    assert status == 0
    ((noise, params, given),) = calls
    assert noise is PROBLEM
    assert params == ("größe.py:problem", "weights")
    assert given == {"step_size": 0.5, "weight_decay": 0.25, "batch_size": 3, "key": 7}
    assert err == "looking for symmetries ...\n"
    folder = tmp_path / "out"
    assert out.splitlines()[-1] == f"Page: {folder / 'analysis.html'}; numbers: {folder / 'analysis.json'}"
    assert sorted(path.name for path in folder.iterdir()) == ["analysis.html", "analysis.json"]
    status, out, err = call(capsys, "analyze", "größe.py:problem", "--json", "--out", folder)
    assert status == 0
    assert json.loads(out)["target"] == "größe.py:problem"
    assert out == (folder / "analysis.json").read_text(encoding="utf-8")
    assert err == "looking for symmetries ...\n"


NETWORKS = Path(__file__).parent.parent.parent / "docs" / "analysis.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "fit"])
def test_a_file_of_100_parameters_takes_less_than_30_seconds_from_a_cold_start(name, tmp_path):
    """Processor time, which is an upper bound of the time on an idle machine and depends little on other programs."""
    before = os.times()
    command = [sys.executable, "-m", "undertow", "analyze", f"{NETWORKS}:{name}", "--json", "--out", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"UNDERTOW_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    after = os.times()
    found = json.loads(done.stdout)
    assert found["parameters"] == 100
    assert (found["path"] is not None) == (name == "fit")
    assert bool(found["rows"]) == (name == "relu")
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert seconds < 30


@pytest.mark.parametrize(
    "option",
    ["--step-size nan", "--step-size -0.1", "--step-size inf", "--batch-size 0", "--batch-size -3",
     "--weight-decay nan", "--weight-decay inf"],
)  # fmt: skip
def test_options_that_are_no_positive_numbers_are_reported_before_anything_is_loaded(option, tmp_path, capsys):
    status, _, err = call(capsys, "analyze", "nowhere.py:problem", *option.split(), "--out", tmp_path / "out")
    assert status == 2
    assert err.startswith(f"undertow: {option.split()[0]} ")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
