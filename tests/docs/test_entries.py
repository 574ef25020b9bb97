"""Entries of the reference: signatures are those of the code, docstrings are complete, fields are rows of a table."""

import importlib
import inspect
import re
import textwrap

import griffe
import pytest

import undertow as ut
from docs.entries import Entries
from docs.reference import PAGES, places

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("made")]


def load(name: str, folder: str) -> griffe.Object:
    loader = griffe.GriffeLoader(
        extensions=griffe.load_extensions("dataclasses", Entries), search_paths=[folder], allow_inspection=False
    )
    package = loader.load(name)
    loader.resolve_aliases(implicit=False, external=False)
    return package


@pytest.fixture(scope="module")
def package():
    return load("undertow", "src")


def shown_arguments(obj: griffe.Object) -> list[str]:
    """Return the arguments of the signature that mkdocstrings shows, an empty list where it shows none."""
    function = obj.all_members.get("__init__") if obj.is_class else obj
    return [] if function is None else [p.name for p in function.parameters if p.name != "self"]


@pytest.mark.parametrize("slug", [slug for slug in PAGES if slug != "torch"])
def test_signatures_have_the_arguments_of_the_code(package, slug):
    for path in places(slug).values():
        module, name = path.rsplit(".", 1)
        if "torch" in path:  # not installed everywhere
            continue
        thing = getattr(importlib.import_module(module), name)
        if not (isinstance(thing, type) and issubclass(thing, Exception)):
            expected = list(inspect.signature(thing).parameters)
            assert shown_arguments(package[path.removeprefix("undertow.")]) == expected, path


def test_examples_of_docstrings_are_complete(package):
    for name in ut.__all__:
        lines = inspect.cleandoc(getattr(ut, name).__doc__).splitlines()
        assert {line for line in lines if line.startswith(">>> ")} <= set(package[name].docstring.value.splitlines())


EXAMPLE = '''
from dataclasses import dataclass, field
from typing import ClassVar

import equinox as eqx


class AbstractBase(eqx.Module):
    """A base."""

    first: int
    """|x_i|^2 of it."""


class Law(AbstractBase):
    """A `descend` of *this* and *that*."""

    second: float = eqx.field(static=True)
    third: float = eqx.field(default=2.0)
    fixed: ClassVar = 1

    def move(self, average):
        """Move by `average`, see `settle`."""


class Written(eqx.Module):
    """Has a constructor."""

    second: float

    def __init__(self, something):
        self.second = something


class Inherits(Written):
    """Has the constructor of its base."""
'''


@pytest.fixture
def example(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.entries._entries", lambda package: [(cls, "") for cls in package.classes.values()])
    (tmp_path / "little.py").write_text(textwrap.dedent(EXAMPLE))
    return load("little", str(tmp_path))


def test_fields_of_modules_are_arguments(example):
    assert shown_arguments(example["Law"]) == ["first", "second", "third"]
    defaults = {p.name: p.default for p in example["Law"].members["__init__"].parameters}
    assert defaults["second"] is None
    assert str(defaults["third"]) == "2.0"
    assert shown_arguments(example["Written"]) == ["something"]
    assert shown_arguments(example["Inherits"]) == ["something"]
    assert shown_arguments(example["AbstractBase"]) == []
    assert example["Law.__init__"].source.startswith("class Law")
    assert "def move" not in example["Law.__init__"].source


def test_fields_are_rows_and_mathematics_is_typeset(example):
    base = example["AbstractBase"].docstring.value
    assert "| `first` | `int` | &#124;x<sub>i</sub>&#124;<sup>2</sup> of it. |" in base
    assert example["AbstractBase.first"].docstring is None  # otherwise it would have a heading
    assert "&#42;this&#42;" in example["Law"].docstring.value


def test_names_link_to_their_entries_except_arguments(example):
    assert "[<code>descend</code>][undertow.descend]" in example["Law"].docstring.value
    text = example["Law.move"].docstring.value
    assert "[<code>settle</code>][undertow.settle]" in text
    assert "by <code>average</code>" in text


def test_the_pages_have_every_entry_with_its_source(site):
    for slug in PAGES:
        page = (site / "api" / f"{slug}.html").read_text()
        assert "<em>" not in page, slug  # a star of a formula
        assert 'class="mkdocstrings-source"' in page
        for name, path in places(slug).items():
            if f'<a id="{name}"></a>' in page:
                assert re.search(rf'<h2 id="{re.escape(path)}"', page), path


def test_the_bridge_to_pytorch_is_documented_without_pytorch(site):
    page = (site / "api" / "torch.html").read_text()
    for path in PAGES["torch"].more:
        assert f'<h2 id="undertow.{path}"' in page, path
    assert re.search(r"from</span><span.*?>.*?undertow\.torch</span>", page)
