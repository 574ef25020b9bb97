"""The coverage of the papers as the packs state it; the content of the packs is tested in tests/papers."""

import pytest

from undertow.verification import coverage as table
from undertow.verification.coverage import Addition, Entry

ENTRIES = (
    Entry("heterogeneity", "Theorem 1", "It holds.", ("first", "second")),
    Entry("heterogeneity", "Lemma 2", "It helps.", reason=table.TOOL),
    Entry("zero_loss", "Lemma 4.3", "It projects.", ("second",)),
)
ADDITIONS = (Addition("third", "a check of größe"),)
PACKS = {("coverage", "COVERAGE"): ENTRIES, ("coverage", "BEYOND"): ADDITIONS}


@pytest.fixture
def packs(monkeypatch):
    """Let the packs state these entries, and count how often they are asked."""
    asked = []

    def collect(module, name, kind):
        asked.append(name)
        return PACKS[module, name]

    monkeypatch.setattr(table, "collect", collect)
    for cached in (table.coverage, table.additions):
        cached.cache_clear()
    yield asked
    for cached in (table.coverage, table.additions):
        cached.cache_clear()


def test_results_and_additions_come_from_the_packs_and_are_read_once(packs):
    for _ in range(2):
        assert table.coverage() == ENTRIES
        assert table.additions() == ADDITIONS
    assert packs == ["COVERAGE", "BEYOND"]


@pytest.mark.parametrize(
    ("claim", "results"),
    [("first", ["Theorem 1"]), ("second", ["Theorem 1", "Lemma 4.3"]), ("third", []), ("fir", []), ("", [])],
)
def test_the_results_that_a_claim_checks(packs, claim, results):
    """A claim is looked up by its whole id, over all papers."""
    assert [entry.result for entry in table.of(claim)] == results


def test_reasons_differ():
    reasons = (table.TOOL, table.CONSTANTS, table.TEXTBOOK, table.DEFINITION, table.ALGEBRA)
    assert len(set(reasons)) == len(reasons)
