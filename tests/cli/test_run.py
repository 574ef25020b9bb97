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
    assert status == 2
    assert "the truth has only 100 entries" in out
    assert "Traceback" not in out + err


def test_a_claim_of_a_file_with_other_parameters(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from undertow.verification import Below, Check, Claim\n"
        "@dataclass(frozen=True)\n"
        "class Size:\n"
        '    """A size."""\n'
        "    n: int = 1\n"
        '    """The number."""\n'
        "def measure(size, key):\n"
        "    return Check('n', float(size.n), 0.0, 0.0, Below(5.0), alternative=9.0)\n"
        "small = Claim('Small.', measure, scales=dict.fromkeys(('smoke', 'default', 'full'), Size()))\n"
        "other = Claim('Other.', measure, scales=small.scales)\n"
    )
    status, out, _ = call(capsys, "run", "mine.py:small", "--n", 7)
    assert status == 1
    assert "fails" in out
    result = json.loads((tmp_path / "undertow-run" / "results.json").read_text())[0]
    assert result["command"] == "undertow run mine.py:small --scale smoke --seed 0 --n 7"
    assert result["meanings"] == {"n": "The number."}
    status, _, err = call(capsys, "run", "mine.py")
    assert (status, err) == (2, "undertow: mine.py has 2 claims; name one of them.\n")
