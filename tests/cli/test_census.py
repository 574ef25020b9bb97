"""`undertow census`: mistakes that need no PyTorch. `tests/analysis/test_census.py` has the rest."""

import sys

from tests.cli.calls import call


def test_a_folder_that_does_not_exist(capsys, tmp_path):
    status, _, complaint = call(capsys, "census", tmp_path / "nowhere")
    assert status == 2
    assert "there is no such folder; give FILE.py:OBJECT or the folder of a model" in complaint


def test_places_for_json_are_checked_first(capsys, tmp_path):
    status, _, complaint = call(capsys, "census", "mine.py:net", "--json", tmp_path / "no" / "c.json")
    assert status == 2
    assert "there is no folder" in complaint
    status, _, complaint = call(capsys, "census", "mine.py:net", "--json", "one.json", "two.json")
    assert status == 2
    assert "give one file" in complaint


def test_without_torch_the_command_to_install_it_is_shown(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    status, _, complaint = call(capsys, "census", tmp_path)
    assert status == 2
    assert "pip install 'undertow[torch]'" in complaint


def test_the_help_names_both_targets(capsys):
    status, shown, _ = call(capsys, "census", "--help")
    assert status == 0
    assert "FILE.py:OBJECT|FOLDER" in shown
    assert "safetensors" in shown
