"""Errata decide which verdict is expected; the content of the packs is tested in tests/papers."""

import pytest

from undertow.verification import errata as lists
from undertow.verification.claim import PAPERS
from undertow.verification.errata import Erratum, errata, expected

LIST = (
    Erratum("zero_loss", "Eq. (1)", "größer", "kleiner", "first"),
    Erratum("zero_loss", "Eq. (2)", "a", "b", None),
    Erratum("heterogeneity", "Eq. (3)", "c", "d", "first"),
)


@pytest.fixture
def listed(monkeypatch):
    monkeypatch.setattr(lists, "collect", lambda module, name, kind: {("errata", "ERRATA"): LIST}[module, name])
    errata.cache_clear()
    yield
    errata.cache_clear()


def test_errata_come_from_the_packs(listed):
    assert errata() == LIST
    assert errata() is errata()


@pytest.mark.parametrize(("claim", "verdict"), [("first", "corrected"), ("second", "holds"), ("", "holds")])
def test_a_claim_that_decides_an_erratum_is_expected_to_correct(listed, claim, verdict):
    """An erratum that reading decides names no claim, and changes no expectation."""
    assert expected(claim) == verdict


def test_every_erratum_of_the_papers_says_where_it_is_and_what_is_right():
    assert {erratum.paper for erratum in errata()} == set(PAPERS) - {"optimisers"}  # no paper
    for erratum in errata():
        assert erratum.place
        assert erratum.printed != erratum.right
