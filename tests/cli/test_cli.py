"""The command line as a person meets it: help, verdicts, exit statuses, sentences instead of tracebacks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import undertow
from tests.cli.calls import FAST, call
from undertow import cli


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


@pytest.mark.parametrize(
    "arguments",
    ["verify", "list", "sweep run", "sweep check", "explore", "errata", "run phase-diagram", "census", "equilibrate"],
)
def test_help_has_no_marks_of_the_parser(arguments, capsys):
    """An option that may be missing, and an empty tuple by default."""
    status, out, _ = call(capsys, *arguments.split(), "--help")
    assert status == 0
    assert "{None}" not in out
    assert "(default: )" not in out


def test_the_help_on_an_option_is_one_line_of_the_source():
    """The parser keeps line breaks, in the middle of a sentence too."""
    for file in Path(cli.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        parts = [part for one in tree.body if isinstance(one, ast.ClassDef) for part in one.body[1:]]
        assert not [part.value.value for part in parts if isinstance(part, ast.Expr) and "\n" in part.value.value]


@pytest.mark.parametrize(
    ("arguments", "continues"),
    [
        (["verify", FAST], True),
        (["errata"], False),
        (["run", FAST], False),  # its one result is not finished
        (["run", "phase-diagram"], True),
    ],
)
def test_ctrl_c_promises_to_continue_only_where_results_are_kept(arguments, continues, capsys, monkeypatch):
    def stop(command):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "ACTIONS", dict.fromkeys(cli.ACTIONS, stop))
    monkeypatch.setattr(cli, "run", stop)
    status, _, error = call(capsys, *arguments)
    assert status == 130
    assert "Stopped." in error
    assert ("continues from there" in error) is continues


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


def test_as_a_module():
    out = subprocess.run([sys.executable, "-m", "undertow", "--version"], capture_output=True, text=True)
    assert (out.returncode, out.stdout.strip()) == (0, f"undertow {undertow.__version__}"), out.stderr


def test_version(capsys):
    status, out, _ = call(capsys, "--version")
    assert status == 0
    assert out.strip() == f"undertow {undertow.__version__}"


def test_too_little_memory_is_a_message(capsys, monkeypatch):
    def exhaust(command):
        raise MemoryError

    monkeypatch.setitem(cli.ACTIONS, cli.List, exhaust)
    status, _, err = call(capsys, "list")
    assert status == 2
    assert err == "undertow: there is not enough memory; finished results are kept, and fewer --jobs need less.\n"
