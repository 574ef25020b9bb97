"""The command line as a person meets it: help, verdicts, exit statuses, sentences instead of tracebacks."""

import json
import subprocess
import sys

import pytest

import undertow
from undertow import cli
from undertow.verification import claims

FAST = "sensing-factor-two"


def call(capsys, *arguments):
    """(exit status, stdout, stderr) of the command line, in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """A folder with the verdict on one claim, by the real program in a process of its own."""
    out = tmp_path_factory.mktemp("verify")
    command = [
        sys.executable,
        "-m",
        "undertow.cli",
        "verify",
        FAST,
        "--scale",
        "smoke",
        "--jobs",
        "1",
        "--out",
        str(out),
    ]
    code = "import sys; from undertow.cli import main; sys.argv[0] = 'undertow'; main()"
    command[1:3] = ["-c", code]
    finished = subprocess.run(command, capture_output=True, text=True)
    return out, finished


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
    assert (out / "figures" / f"{FAST}.pdf").read_bytes().startswith(b"%PDF")


def test_report_builds_again(verified, capsys):
    out, _ = verified
    before = (out / "report.html").read_text()
    (out / "report.html").unlink()
    status, printed, _ = call(capsys, "report", out)
    assert status == 0
    assert printed.strip().endswith("report.html")
    assert (out / "report.html").read_text() == before


def test_a_surprise_is_exit_status_one(verified, capsys, monkeypatch, tmp_path):
    """Were the erratum not on the list, its claim would be expected to hold, and `corrected` a surprise."""
    monkeypatch.setattr("undertow.verification.errata.errata", lambda: ())
    status, out, _ = call(capsys, "verify", FAST, "--scale", "smoke", "--jobs", 1, "--out", tmp_path)
    assert status == 1
    assert "0 of 1 verdicts as expected" in out
    assert "expected: holds" in out


def test_help_has_a_sentence_for_every_flag(capsys):
    status, out, _ = call(capsys, "--help")
    assert status == 0
    for command in ("verify", "list", "run", "errata", "report"):
        assert command in out
    status, out, _ = call(capsys, "verify", "--help")
    for flag in ("--paper", "--scale", "--jobs", "--out", "--seed", "--fresh"):
        assert flag in out
    assert "exits with 0 only when every verdict" in " ".join(out.lower().split())


def test_help_does_not_import_the_heavy_things():
    code = (
        "import sys\nfrom undertow import cli\ntry:\n cli.main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'jax', 'matplotlib', 'xarray', 'zarr', 'scipy', 'numpy'}\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert out.strip().endswith("[]")


def test_list_and_errata(capsys):
    status, out, _ = call(capsys, "list")
    assert status == 0
    assert all(name in out for name in claims)
    _, only, _ = call(capsys, "list", "--paper", "heterogeneity")
    assert FAST in only
    assert "sde-weak-order" not in only
    _, out, _ = call(capsys, "errata", "--json")
    errata = json.loads(out)
    assert {erratum["claim"] for erratum in errata} <= {*claims, None}
    for erratum in errata:
        assert set(erratum) == {"paper", "place", "printed", "right", "claim"}
        assert all(value for name, value in erratum.items() if name != "claim")
    _, out, _ = call(capsys, "errata")
    for erratum in errata:
        assert erratum["printed"] in out
        assert erratum["right"] in out
        assert erratum["claim"] is None or f"undertow verify {erratum['claim']}" in out


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


MISTAKES = {
    "an unknown claim": ("verify sensing-factor-tow", "did you mean sensing-factor-two"),
    "an unknown experiment": ("run sensing-factor-tow", "did you mean sensing-factor-two"),
    "an unwritable folder": (f"verify {FAST} --out TMP/file/x", "cannot write here"),
    "no jobs": (f"verify {FAST} --jobs 0", "give at least 1"),
    "a claim of another paper": (f"verify {FAST} --paper zero_loss", "none of the claims named"),
    "no results": ("report TMP", "no results.json here"),
    "damaged results": ("report TMP/damaged", "damaged"),
    "a bad scale": (f"run {FAST} --scale huge", "choose one of smoke"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_sentences(capsys, tmp_path, mistake):
    (tmp_path / "file").write_text("")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "results.json").write_text("{")
    line, message = MISTAKES[mistake]
    status, out, err = call(capsys, *line.replace("TMP", str(tmp_path)).split())
    assert status == 2
    assert message in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) == 1


def test_two_runs_on_one_folder(capsys, tmp_path):
    from undertow.execution import store

    with store.folder_lock(tmp_path):
        status, _, err = call(capsys, "verify", FAST, "--scale", "smoke", "--out", tmp_path)
    assert status == 2
    assert "another run is writing" in err


def test_bad_parameters_are_a_verdict_not_a_traceback(capsys, tmp_path):
    status, out, err = call(capsys, "run", "label-noise-escapes", "--sparsity", 500, "--out", tmp_path)
    assert status == 1
    assert "the truth has only 100 entries" in out
    assert "Traceback" not in out + err


def test_as_a_module():
    out = subprocess.run([sys.executable, "-m", "undertow", "--version"], capture_output=True, text=True)
    assert (out.returncode, out.stdout.strip()) == (0, f"undertow {undertow.__version__}"), out.stderr


def test_version(capsys):
    status, out, _ = call(capsys, "--version")
    assert status == 0
    assert out.strip() == f"undertow {undertow.__version__}"
