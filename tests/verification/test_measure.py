"""The experiment of one claim: its files, its result, and errors as results."""

import dataclasses

import jax
import pytest

from undertow._device import device
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


@pytest.mark.parametrize("accelerated", [True, False])
def test_small_models_run_on_a_processor_beside_an_accelerator(accelerated, monkeypatch):
    monkeypatch.setattr(measure, "has_accelerator", lambda: True)
    with measure.placed(accelerated):
        assert jax.config.jax_default_device == (None if accelerated else jax.devices("cpu")[0])
        assert device() == jax.devices("cpu")[0]
    assert jax.config.jax_default_device is None
