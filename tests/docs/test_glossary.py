"""The glossary names files that exist, and defines every term once."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "undertow"

pytestmark = pytest.mark.docs


def test_every_place_in_the_glossary_exists():
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| ")]
    places = [place for row in rows for place in re.findall(r"`([\w./]+(?:/|\.py))`", row)]
    assert len(places) > 50
    for place in places:
        assert (SOURCE / place).exists(), place


def test_no_term_is_defined_twice():
    text = (ROOT / "docs" / "glossary.md").read_text().split("## Symbols")[0]
    terms = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    terms = [term for term in terms if term != "term" and not term.startswith("-")]
    assert len(terms) == len(set(terms)) > 40
