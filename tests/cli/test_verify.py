"""`undertow verify`: results, report, exit statuses, and a folder in use."""

import json

from tests.cli.calls import FAST, call
from undertow.execution import store


def test_verify_writes_results_and_report(verified):
    out, finished = verified
    assert finished.returncode == 0, finished.stderr
    assert "1 of 1 verdicts as expected" in finished.stdout
    assert "corrected" in finished.stdout
    (result,) = json.loads((out / "results.json").read_text())
    wanted = {"claim", "paper", "verdict", "expected", "measured", "predicted", "uncertainty", "seeds", "seconds"}
    assert wanted <= set(result)
    assert result["claim"] == FAST
    assert result["predicted"] == 2.0
    page = (out / "report.html").read_text()
    assert '<svg role="img"' in page
    assert f'id="{FAST}"' in page
    for outside in ("http://", "https://", "<script src", "<link"):
        assert outside not in page
    assert (out / "claims" / FAST / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_a_surprise_is_exit_status_one(verified, capsys, monkeypatch, tmp_path):
    """Were the erratum not on the list, its claim would be expected to hold, and `corrected` a surprise."""
    monkeypatch.setattr("undertow.verification.errata.errata", lambda: ())
    status, out, _ = call(capsys, "verify", FAST, "--scale", "smoke", "--jobs", 1, "--out", tmp_path)
    assert status == 1
    assert "0 of 1 verdicts as expected" in out
    assert "expected: holds" in out


def test_two_runs_on_one_folder(capsys, tmp_path):
    with store.folder_lock(tmp_path):
        status, _, err = call(capsys, "verify", FAST, "--scale", "smoke", "--out", tmp_path)
    assert status == 2
    assert "another run is writing" in err
