"""Experiments are found by name, and their parameters are checked."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray

from tests.execution.sweeps.functions import walk
from undertow.execution.registry import Registry
from undertow.execution.sweeps import drive, experiments, sweep
from undertow.execution.sweeps.diagram import Diagram
from undertow.execution.sweeps.experiments import find, fit_value, fitted, of_function
from undertow.execution.sweeps.spec import SpecError, as_spec
from undertow.execution.workers import InProcess

FILE = str(Path(__file__).with_name("functions.py"))


def test_values_fit_their_parameters():
    kinds = {"eta": "float", "n": "int", "flag": "bool", "word": "str"}
    assert fitted(kinds, (), {"eta": 1, "n": 2.0}) == {"eta": 1.0, "n": 2}
    for given, sentence in (
        ({"n": 2.5}, "a whole number"), ({"eta": "a"}, "a number"), ({"flag": 1}, "true or false"),
        ({"word": 1}, "text"), ({"etta": 1}, "did you mean eta"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=sentence):
            fitted(kinds, (), given)
    with pytest.raises(SpecError, match="no value and no default"):
        fitted(kinds, ("n",), {"eta": 1.0})
    with pytest.raises(SpecError, match="has no parameter 'etta'; did you mean eta"):
        fitted(kinds, ("eta",), {"etta": 1.0})


@pytest.mark.slow
def test_a_claim_is_an_experiment(tmp_path):
    """Its checks, as a sweep records them, are those of the claim itself."""
    job = sweep._job(as_spec("sensing-factor-two", {"d": [2, 3]}), tmp_path, None)
    with jax.enable_x64(True):
        state = drive.run(job, InProcess)
    assert state.done == 2
    data = xarray.open_zarr(job.folder / "results.zarr").load()
    assert data.measured.dims == ("d", "seed", "check")
    np.testing.assert_allclose(data.measured.isel(check=0), 2.0, rtol=1e-6)
    verdict = json.loads((job.folder / "results.zarr" / ".zattrs").read_text())["verdicts"]
    assert verdict[int(data.verdict[0, 0, 0])] == "corrected"


@dataclass(frozen=True)
class Sizes:
    """The parameters of a claim."""

    d: int = 2
    eta: float = 0.5


class StubClaim:
    """What `find` needs of a claim."""

    id, scales, COLUMNS = "sensing-factor-two", {"smoke": Sizes(), "full": Sizes(9)}, ("measured",)
    VERDICTS = ("holds", "fails")
    paper, plant, rests_on = "zero_loss", None, ()

    def parameters(self, scale):
        return vars(self.scales[scale])

    def columns(self, parameters, key):
        return {"measured": [parameters.d, parameters.eta]}


@pytest.fixture
def named(monkeypatch):
    """One claim and one phase diagram by name; the packs take seconds to import."""
    diagram = Diagram("recovery", walk, lambda points: {}, 2, 1, ("x", "y"), lambda data: None)
    monkeypatch.setattr(experiments, "claims", Registry("claim", lambda: {StubClaim.id: StubClaim()}))
    monkeypatch.setattr(experiments, "diagrams", Registry("phase diagram", lambda: {diagram.id: diagram}))


def test_a_function_of_a_file_is_found_with_the_kinds_of_its_parameters():
    for experiment in (find(f"{FILE}:walk", "smoke"), find(walk, "smoke")):
        assert experiment.kinds == {"step_size": "float", "drift": "float", "steps": "int"}
        assert experiment.needed == ("step_size",)
        assert experiment.batched


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{FILE}:nothing", r"functions.py has no function 'nothing'"),
        (f"{FILE}:np", r"functions.py has no function 'np'"),
        ("/nowhere.py:f", r"/nowhere.py: there is no such file"),
        ("TMP/größe.py:f", r"größe.py cannot be run: ZeroDivisionError: division by zero"),
        ("recovry", r"there is no experiment 'recovry'; did you mean recovery"),
        ("sensing-factor-tow", r"did you mean sensing-factor-two.*\? Your own is FILE.py:FUNCTION"),
        ("qqqqqqq", r"`undertow list` shows the claims\. Your own is FILE.py:FUNCTION"),
        ("", r"there is no experiment ''"),
    ],
)
def test_an_unknown_experiment_is_reported(named, tmp_path, name, message):
    (tmp_path / "größe.py").write_text("f = 1 / 0\n")
    with pytest.raises(SpecError, match=message):
        find(name.replace("TMP", str(tmp_path)), "smoke")


def test_a_phase_diagram_is_the_function_behind_it(named):
    experiment = find("recovery", "smoke")
    assert experiment.kinds == of_function(walk).kinds
    assert experiment.batched


def keyless(*, a: float):
    return a


def positional(key, a: float):
    return a


def collecting(key, *values):
    return values


def without_arguments():
    return {}


@pytest.mark.parametrize("function", [keyless, positional, collecting, without_arguments])
def test_a_function_has_a_key_and_keywords(function):
    name = function.__name__
    with pytest.raises(SpecError, match=rf"{name}: write it as {name}\(key, \*, parameters...\)"):
        of_function(function)


def test_a_function_whose_arguments_are_unknown_is_reported():
    """Python knows no signature of some functions that are written in C."""
    with pytest.raises(SpecError, match=r"max: write it as max\(key, \*, parameters...\)"):
        of_function(max)


def test_kinds_come_from_annotations_then_from_defaults():
    def function(
        key, *, a: "float", b: float | jax.Array, c=1, d=1.0, e=True, f="x", g, h: list | None = None, i: bool = 1
    ):
        return a

    kinds = of_function(function).kinds
    assert kinds == {
        "a": "float", "b": "float", "c": "int", "d": "float", "e": "bool", "f": "str", "g": "any", "h": "any",
        "i": "bool",
    }  # fmt: skip
    assert of_function(function).needed == ("a", "b", "g")


def test_annotations_that_cannot_be_resolved_leave_the_defaults():
    def function(key, *, a: "Missing" = 1.0, b: "Missing"):
        return a

    assert of_function(function).kinds == {"a": "float", "b": "any"}


def test_a_function_with_fixed_arguments_keeps_its_annotations():
    """`functools.partial` has no annotations of its own."""
    experiment = of_function(functools.partial(walk, steps=5))
    assert experiment.kinds == {"step_size": "float", "drift": "float", "steps": "int"}
    assert experiment.needed == ("step_size",)
    nested = of_function(functools.partial(functools.partial(walk, drift=0.5), steps=5))
    assert nested.kinds == experiment.kinds


def test_outputs_are_a_dict_of_arrays_or_one_value():
    key = jax.random.key(0)
    assert of_function(lambda key, *, a: {"x": a}).call(key, {"a": 2.0}) == {"x": 2.0}
    assert of_function(lambda key, *, a: a).call(key, {"a": 2.0}) == {"value": 2.0}
    with pytest.raises(SpecError, match="returns no outputs; return a dict of arrays"):
        of_function(lambda key, *, a: {}).call(key, {"a": 2.0})


def test_a_claim_is_found_with_the_parameters_of_its_scale(named):
    experiment = find("sensing-factor-two", "full")
    assert experiment.kinds == {"d": "int", "eta": "float"}
    assert (experiment.needed, experiment.batched) == ((), False)
    assert experiment.call(jax.random.key(0), {"eta": 0.25}) == {"measured": [9, 0.25]}
    assert experiment.dimensions == {"measured": ("check",)}
    assert experiment.attributes == {"verdicts": ["holds", "fails"], "claim": "sensing-factor-two"}
    with pytest.raises(SpecError, match="scale = 'huge': choose one of smoke, full"):
        find("sensing-factor-two", "huge")


def test_values_keep_their_type_where_they_fit():
    for kind, value, expected in (
        ("float", 3, 3.0), ("int", 3.0, 3), ("int", -0.0, 0), ("bool", False, False), ("str", "größe", "größe"),
        ("any", 3, 3), ("any", True, True),
    ):  # fmt: skip
        fit = fit_value("x", kind, value)
        assert (fit, type(fit)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "value"),
    [("float", True), ("int", True), ("int", float("nan")), ("int", float("inf")), ("bool", 0), ("str", 1.0)],
)
def test_values_that_do_not_fit_are_reported(kind, value):
    wanted = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}[kind]
    with pytest.raises(SpecError, match=rf"größe = .*: größe is {wanted}\.$"):
        fit_value("größe", kind, value)


def test_parameters_of_an_experiment_without_any_are_reported():
    with pytest.raises(SpecError, match=r"no parameter 'a'; there are none\."):
        fitted({}, (), {"a": 1})
    assert fitted({}, (), {}) == {}
