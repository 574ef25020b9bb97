"""The experiment of one claim: its files, its result, and errors as results."""

import contextlib
import dataclasses
import inspect
import os

import jax
import pytest
import xarray

from tests.verification import tiny
from undertow._device import device
from undertow.execution import store
from undertow.execution.workers import InProcess
from undertow.figures import style
from undertow.verification import Check, Within, claims, measure, runner
from undertow.verification.claim import draw_checks


def test_an_exception_is_a_result(tmp_path, monkeypatch):
    claim = claims["isotropic-covariance"]

    def broken(parameters, key):
        raise ArithmeticError("all went wrong\nand more")

    monkeypatch.setitem(claims.loaded(), claim.id, dataclasses.replace(claim, measure=broken))
    task = runner.task_of(claim.id, "smoke", claim.parameters("smoke"), 0)
    (result,) = runner.run_claims([task], tmp_path, 1, workers=lambda jobs: InProcess())
    assert result.verdict == "error"
    line = inspect.getsourcelines(broken)[1] + 1
    assert result.note == f"ArithmeticError: all went wrong (test_measure.py, line {line})"
    assert "Traceback" in result.traceback
    (again,) = runner.run_claims([task], tmp_path, 1, workers=lambda jobs: InProcess())
    assert again.verdict == "error"  # errors are tried again, not kept


def test_a_real_claim_end_to_end(tmp_path, x64):
    claim = claims["sensing-factor-two"]
    task = runner.task_of(claim.id, "smoke", claim.parameters("smoke"), 0)
    (result,) = runner.run_claims([task], tmp_path, 1, workers=lambda jobs: InProcess())
    assert result.verdict == result.expected == "corrected"
    assert abs(result.headline.measured - 2) < 1e-9
    assert result.compile_seconds + result.run_seconds == pytest.approx(result.seconds)
    assert (tmp_path / "claims" / claim.id / "figure.svg").read_text().startswith("<?xml")


class KilledError(BaseException):
    """Stands for the end of a process."""


def kill_at(monkeypatch, place, name, count):
    """Make a function raise at its call number `count`; the list returned grows by one per call."""
    real, calls = getattr(place, name), []

    def counted(*arguments, **keywords):
        calls.append(name)
        if len(calls) == count:
            raise KilledError
        return real(*arguments, **keywords)

    monkeypatch.setattr(place, name, counted)
    return calls


@pytest.mark.parametrize("exchange", [True, False])
def test_a_killed_verification_leaves_data_figure_and_numbers_of_one_run(tmp_path, monkeypatch, exchange):
    """Seed 0, then seed 1 killed at each of its renames, then seed 0 again.

    Version 1.0 kept the data and the figure of seed 1 beside the numbers of seed 0, if it was killed between them.
    """
    monkeypatch.setitem(claims.loaded(), "tiny-one", tiny.CLAIMS["tiny-one"])
    folder = tmp_path / "claims" / "tiny-one"
    if not exchange:  # a system that cannot exchange two folders
        monkeypatch.setattr(store, "_exchange", lambda one, other: False, raising=False)
    names = [(os, "rename"), (os, "replace"), *([(store, "_exchange")] if exchange else [])]

    def run(seed):
        task = runner.task_of("tiny-one", "smoke", {"count": 8}, seed)
        return runner.run_claims([task], tmp_path, 1, workers=lambda jobs: InProcess())[0]

    first = run(0)
    for place, name in names:
        count = 1
        run(0)
        while True:
            with monkeypatch.context() as patch:
                calls = kill_at(patch, place, name, count)
                with contextlib.suppress(KilledError):
                    run(1)
            if len(calls) < count:
                break
            again = run(0)
            assert tiny.assert_coherent(folder) == 0
            assert again.headline == first.headline
            count += 1
    run(1)
    assert tiny.assert_coherent(folder) == 1


@pytest.mark.parametrize(("scale", "kinds"), [("smoke", {".svg"}), ("default", {".svg", ".pdf"})])
def test_figures_for_papers_are_written_above_the_smallest_scale(tmp_path, monkeypatch, scale, kinds):
    claim = tiny.CLAIMS["tiny-one"]
    monkeypatch.setitem(claims.loaded(), claim.id, claim)
    measure.run_claim(str(tmp_path), runner.task_of(claim.id, scale, claim.parameters(scale), 0))
    assert {file.suffix for file in tmp_path.rglob("figure.*")} == kinds


@pytest.mark.parametrize("accelerated", [True, False])
def test_small_models_run_on_a_processor_beside_an_accelerator(accelerated, monkeypatch):
    monkeypatch.setattr(measure, "has_accelerator", lambda: True)
    with measure.placed(accelerated):
        assert jax.config.jax_default_device == (None if accelerated else jax.devices("cpu")[0])
        assert device() == jax.devices("cpu")[0]
    assert jax.config.jax_default_device is None


def judged(tmp_path, monkeypatch, measured, *, planted=False, **changes):
    """Return the result of a claim that returns `measured`."""
    name = "isotropic-covariance"
    settings = {"measure": lambda p, key: measured, "controls": False, "plant": None, "draw": draw_checks} | changes
    monkeypatch.setitem(claims.loaded(), name, dataclasses.replace(claims[name], **settings))
    task = runner.task_of(name, "smoke", claims[name].parameters("smoke"), 0, planted=planted)
    return measure.run_claim(str(tmp_path), task)


GOOD = Check("number", 1.0, 1.0, 0.1, Within(0.0, 1.0), alternative=3.0, samples=100)


def test_checks_alone_are_enough(tmp_path, monkeypatch):
    result = judged(tmp_path, monkeypatch, [GOOD, dataclasses.replace(GOOD, what="other")])
    assert result.verdict == "holds"
    assert result.seeds == 100
    stored = xarray.open_zarr(tmp_path / "claims" / result.claim / "data.zarr")
    assert stored["measured"].sel(check="other") == 1.0


@pytest.mark.parametrize(
    ("measured", "sentence"),
    [
        (None, "`measure` returned nothing; return a Measurement, a Check or a tuple of Checks."),
        ((), "`measure` returned an empty tuple; return"),
        ((1.0, 2.0), "`measure` returned a tuple of float; return"),
        ("text", "`measure` returned a value of the type str; return"),
        (dataclasses.replace(GOOD, measured=float("nan")), "the check 'number' has measured = nan, which cannot be"),
        (dataclasses.replace(GOOD, uncertainty=float("nan")), "the check 'number' has uncertainty = nan"),
        (dataclasses.replace(GOOD, alternative=None), "the check 'number' names no alternative that it must reject"),
        (dataclasses.replace(GOOD, samples=None), "the check 'number' has a standard error from an unknown number"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_an_error_in_one_sentence(measured, sentence, tmp_path, monkeypatch):
    result = judged(tmp_path, monkeypatch, measured)
    assert result.verdict == "error"
    assert result.note.startswith(sentence)
    assert not result.traceback


def test_a_value_that_is_no_number(tmp_path, monkeypatch, as_a_user):
    text = Check("number", "one", 1.0, 0.0, Within(0.0, 1.0), alternative=3.0)
    assert judged(tmp_path, monkeypatch, text).note == "the check 'number' has measured = 'one', which is not a number."


def test_controls_need_one_check_with_an_alternative(tmp_path, monkeypatch):
    control = dataclasses.replace(GOOD, alternative=None)
    assert judged(tmp_path, monkeypatch, [GOOD, control], controls=True).verdict == "holds"
    assert "no check names the value" in judged(tmp_path, monkeypatch, [control], controls=True).note


def test_an_infinite_measurement_fails(tmp_path, monkeypatch):
    """A run that diverges rejects a claim, which is not a mistake of the claim."""
    drawn = {"draw": lambda measurement, parameters: style.new_figure()[0]}
    result = judged(tmp_path, monkeypatch, dataclasses.replace(GOOD, measured=float("inf")), **drawn)
    assert result.verdict == "fails"


def test_a_planted_claim_runs_in_its_plant(tmp_path, monkeypatch):
    world = {"value": 1.0}

    @contextlib.contextmanager
    def planted():
        world["value"] = 3.0
        yield
        world["value"] = 1.0

    seen = {"measure": lambda p, key: dataclasses.replace(GOOD, measured=world["value"]), "plant": planted}
    result = judged(tmp_path, monkeypatch, None, planted=True, **seen)
    assert (result.verdict, result.expected, world["value"]) == ("fails", "fails", 1.0)
    plain = judged(tmp_path, monkeypatch, None, **seen)
    assert (plain.verdict, plain.expected) == ("holds", "holds")
    without = judged(tmp_path, monkeypatch, GOOD, planted=True)
    assert without.note.startswith("the claim has no plant, so nothing shows that it can fail")
