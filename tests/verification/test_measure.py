"""The experiment of one claim: its files, its result, and errors as results."""

import contextlib
import dataclasses
import os

import jax
import pytest

from tests.verification import tiny
from undertow._device import device
from undertow.execution import store
from undertow.execution.workers import InProcess
from undertow.verification import claims, measure, runner


def test_an_exception_is_a_result(tmp_path, monkeypatch):
    claim = claims["isotropic-covariance"]

    def broken(parameters, key):
        raise ArithmeticError("all went wrong\nand more")

    monkeypatch.setitem(claims.loaded(), claim.id, dataclasses.replace(claim, measure=broken))
    task = runner.task_of(claim.id, "smoke", claim.parameters("smoke"), 0)
    (result,) = runner.run_claims([task], tmp_path, 1, workers=lambda jobs: InProcess())
    assert result.verdict == "error"
    assert result.note == "ArithmeticError: all went wrong"
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


@pytest.mark.parametrize("accelerated", [True, False])
def test_small_models_run_on_a_processor_beside_an_accelerator(accelerated, monkeypatch):
    monkeypatch.setattr(measure, "has_accelerator", lambda: True)
    with measure.placed(accelerated):
        assert jax.config.jax_default_device == (None if accelerated else jax.devices("cpu")[0])
        assert device() == jax.devices("cpu")[0]
    assert jax.config.jax_default_device is None
