"""`undertow equilibrate`: mistakes that need no PyTorch. `tests/analysis/test_equilibrate.py` has the rest."""

import sys

import pytest

from tests.cli.calls import call

STEP = ("--step-size", "0.1")
MISTAKES = {
    "no file and no dry run": (("mine.py:net", *STEP), "give --out FILE.safetensors for the moved weights"),
    "a dry run with a file": (("mine.py:net", *STEP, "--dry-run", "--out", "w.safetensors"), "writes nothing"),
    "another ending": (("mine.py:net", *STEP, "--out", "w.bin"), "give a file that ends in .safetensors"),
    "no folder": (("mine.py:net", *STEP, "--out", "no/w.safetensors"), "there is no folder no; create it first"),
    "a file that exists": (("mine.py:net", *STEP, "--out", "old.safetensors"), "or --force to replace it"),
    "no step": (("mine.py:net", "--step-size", "0", "--dry-run"), "--step-size 0.0: give a finite number above 0"),
    "a negative decay": (("mine.py:net", *STEP, "--weight-decay", "-1", "--dry-run"), "--weight-decay -1.0: give 0"),
    "no samples": (("mine.py:net", *STEP, "--batch-size", "0", "--dry-run"), "--batch-size 0: give a number above 0"),
    "no such folder": (("nowhere", *STEP, "--dry-run"), "there is no such folder; give FILE.py:OBJECT"),
    "a folder without batches": (("model", *STEP, "--dry-run"), "the noise is that of your batches"),
    "two sets of batches": (("mine.py:net", *STEP, "--dry-run", "--batches", "a.py:b"), "leave --batches out"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_options_are_checked_first(what, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.safetensors").write_text("kept")
    (tmp_path / "model").mkdir()
    arguments, sentence = MISTAKES[what]
    status, _, complaint = call(capsys, "equilibrate", *arguments)
    assert status == 2
    assert sentence in complaint
    assert (tmp_path / "old.safetensors").read_text() == "kept"


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_without_its_packages_the_command_to_install_them_is_shown(package, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    status, _, complaint = call(capsys, "equilibrate", "mine.py:net", *STEP, "--dry-run")
    assert status == 2
    assert "pip install 'undertow[torch]'" in complaint


def test_the_help_names_the_options(capsys):
    status, shown, _ = call(capsys, "equilibrate", "--help")
    assert status == 0
    for word in ("FILE.py:OBJECT|FOLDER", "--dry-run", "FILE.safetensors", "--force", "{sgd,adamw}"):
        assert word in shown
