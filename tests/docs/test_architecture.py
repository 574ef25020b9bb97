"""The import graph of docs/architecture.md shows all imports between the parts of the code."""

from pathlib import Path

import pytest

from docs import architecture

pytestmark = pytest.mark.docs


def test_the_picture_is_up_to_date_with_the_code():
    """Run `python -m docs.architecture` where this fails: an import between folders was added or removed."""
    assert architecture.read() == architecture.edges()
    assert architecture.table(architecture.edges()) in architecture.PAGE.read_text()


def test_the_picture_shows_every_part():
    text = architecture.IMAGE.read_text()
    for part in architecture.edges():
        assert f">{part}</text>" in text, part


def test_every_part_is_described_on_the_page():
    page = architecture.PAGE.read_text()
    for part in set(architecture.edges()) - {architecture.GROUND}:
        assert f"`{part}/`" in page or f"`{part}.py`" in page, part


def test_kinds_of_imports_are_distinguished(monkeypatch, tmp_path):
    """A module-level import, one inside a function, one for type checkers only, and a re-export."""
    for file, text in {
        "upper/__init__.py": "from undertow.lower.a import f\n",
        "upper/a.py": "from undertow import _ground\nif TYPE_CHECKING:\n    from undertow.other import x\n",
        "upper/b.py": "def f():\n    from undertow.lower.a import g\n",
        "lower/a.py": "import undertow._ground\nimport undertow.upper.b\n",
        "_ground.py": "",
        "other.py": "",
    }.items():
        path = Path(tmp_path, file)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(architecture, "SOURCE", tmp_path)
    graph = architecture.edges()
    ground = architecture.GROUND
    assert graph == {
        "lower": {ground: "module", "upper": "module"},
        "other": {},
        ground: {},
        "upper": {"lower": "function", ground: "module"},
    }
    assert architecture.layers(graph) == {ground: 0, "other": 0, "upper": 1, "lower": 2}


def test_the_transitive_reduction_keeps_reachability():
    graph = {"a": {"b": "module", "c": "module"}, "b": {"c": "module"}, "c": {"b": "function"}}
    assert architecture.layers(graph) == {"c": 0, "b": 1, "a": 2}
    assert architecture.reduced(graph) == [("a", "b", "module"), ("b", "c", "module"), ("c", "b", "function")]
