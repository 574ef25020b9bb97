"""The object that FILE.py:OBJECT names, or a message that says what is wrong with it."""

import pytest

import undertow as ut
from undertow.analysis.target import JaxTarget, load
from undertow.execution.registry import UserFileError

FILE = """
import jax.numpy as jnp
import undertow as ut

problem = ut.Problem(lambda p, s: (p - s) ** 2, jnp.zeros(4))
noise = ut.Minibatch(problem, 2)
params, weights = jnp.ones(()), jnp.full((), 2.0)
both = (noise, weights)
make = lambda: both
make_problem = lambda: problem
def breaks():
    raise KeyError("größe")
needs = lambda size: problem
number, empty, one, four = 3, (), (problem,), (1, 2, 3, 4)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "größe.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "params_name", "kind", "params"),
    [
        ("problem", "params", ut.Problem, 1.0),
        ("noise", "params", ut.Minibatch, 1.0),
        ("noise", "weights", ut.Minibatch, 2.0),
        ("both", "params", ut.Minibatch, 2.0),
        ("both", "nowhere", ut.Minibatch, 2.0),
        ("make", "params", ut.Minibatch, 2.0),
        ("make_problem", "weights", ut.Problem, 2.0),
    ],
)
def test_a_problem_or_a_noise_with_its_params(file, name, params_name, kind, params):
    target = load(f"{file}:{name}", params_name)
    assert isinstance(target, JaxTarget)
    assert isinstance(target.noise, kind)
    assert float(target.params) == params


@pytest.mark.parametrize(
    ("name", "params_name", "message"),
    [
        ("", "params", r"größe\.py: name an object of the file as well, such as .*größe\.py:problem"),
        (":nope", "params", r"größe\.py has no object 'nope'; it has both, breaks, empty, four, "),
        (":number", "params", r"größe\.py:number is an int; give a problem, a noise, or a pair"),
        (":empty", "params", "is a tuple; give a problem"),
        (":one", "params", "is a tuple; give a problem"),
        (":four", "params", "is a tuple; give a problem"),
        (":problem", "nope", r"has no variable 'nope' with the params; name it with --params, or let problem be a"),
        (":breaks", "params", r"größe\.py:breaks cannot be run: KeyError: 'größe'"),
        (":needs", "params", r"größe\.py:needs takes \(.*\); give a function without arguments"),
    ],
)
def test_a_wrong_target_is_reported(file, name, params_name, message):
    with pytest.raises(UserFileError, match=message):
        load(f"{file}{name}", params_name)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(UserFileError, match=r"nowhere.py: there is no such file"):
        load(f"{tmp_path}/nowhere.py:problem", "params")
    with pytest.raises(UserFileError, match=r": name an object of the file as well, such as FILE.py:problem"):
        load("", "params")
    with pytest.raises(UserFileError, match="there is no such file"):
        load(f"{tmp_path}:problem", "params")
