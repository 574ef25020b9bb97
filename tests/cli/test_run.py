"""`undertow run`: one experiment with the user's own parameters."""

import json

from tests.cli.calls import FAST, call


def test_run_with_own_numbers(capsys, tmp_path):
    status, out, _ = call(capsys, "run", FAST, "--d", 4, "--points", 7, "--out", tmp_path)
    assert status == 0, out
    (result,) = json.loads((tmp_path / "results.json").read_text())
    assert result["parameters"] == {"points": 7, "d": 4, "m": 30}
    status, out, _ = call(capsys, "run", FAST, "--help")
    assert "Measurements in a batch." in out
    status, out, _ = call(capsys, "run")
    assert status == 0
    assert FAST in out


def test_bad_parameters_are_a_verdict_not_a_traceback(capsys, tmp_path):
    status, out, err = call(capsys, "run", "label-noise-escapes", "--sparsity", 500, "--out", tmp_path)
    assert status == 1
    assert "the truth has only 100 entries" in out
    assert "Traceback" not in out + err
