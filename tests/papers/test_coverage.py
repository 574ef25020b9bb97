"""The table of results and their claims: complete, without repetition, consistent with the registry and the errata."""

import re

from undertow.verification import claims
from undertow.verification.claim import PAPERS
from undertow.verification.coverage import additions, coverage, of
from undertow.verification.errata import errata


def test_every_claim_named_exists():
    named = {claim for entry in coverage() for claim in entry.claims} | {addition.claim for addition in additions()}
    assert named <= set(claims)


def test_every_claim_is_in_the_table():
    covered = {claim for entry in coverage() for claim in entry.claims}
    beyond = [addition.claim for addition in additions()]
    assert len(beyond) == len(set(beyond))
    assert not covered & set(beyond)
    assert set(claims) == covered | set(beyond)


def test_no_result_is_listed_twice():
    results = [(entry.paper, entry.result) for entry in coverage()]
    assert len(results) == len(set(results))


def test_every_result_has_claims_or_a_reason():
    for entry in coverage():
        assert bool(entry.claims) != bool(entry.reason), entry.result
        assert len(entry.claims) == len(set(entry.claims))
        assert entry.says.endswith(".")


def test_papers_are_in_order():
    papers = [entry.paper for entry in coverage()]
    assert list(dict.fromkeys(papers)) == list(PAPERS)
    assert papers == sorted(papers, key=PAPERS.index)


def numbers(text, kind):
    """Return the numbers of results of a kind in a heading: 1, 2, 3, 4 for "Lemmas 1 to 4"."""
    result = set()
    for run in re.findall(
        rf"{kind}s?:? ((?:[A-E]\.)?\d+(?:\.\d+)?(?:(?:, | and | to )(?:[A-E]\.)?\d+(?:\.\d+)?)*)", text
    ):
        for head, low, high in re.findall(r"((?:[A-E]\.|\d+\.)?)(\d+)(?: to (?:[A-E]\.|\d+\.)?(\d+))?", run):
            result |= {f"{head}{n}" for n in range(int(low), int(high or low) + 1)}
    return result


def heads(kind):
    return {paper: set().union(*(numbers(e.result, kind) for e in coverage() if e.paper == paper)) for paper in PAPERS}


def run(head, first, last):
    return {f"{head}{n}" for n in range(first, last + 1)}


def test_every_theorem_lemma_and_figure_has_an_entry():
    """The papers number their results without gaps; the last number of each kind is from the papers."""
    theorems, lemmas, figures = heads("Theorem"), heads("Lemma"), heads("Figure")
    assert theorems["heterogeneity"] == run("", 1, 8)
    assert lemmas["heterogeneity"] == run("", 1, 20)
    assert figures["heterogeneity"] == run("", 1, 6)
    assert heads("Algorithm")["heterogeneity"] == run("", 1, 4)
    assert heads("Definition")["heterogeneity"] == run("", 1, 6)
    # one counter in each section for theorems, lemmas, corollaries, remarks and definitions
    kinds = ("Theorem", "Lemma", "Corollar(?:y|ie)", "Remark", "Definition", "Condition", "Proposition", "Assumption")
    every = {paper: set().union(*(heads(kind)[paper] for kind in kinds)) for paper in PAPERS}
    for head, last in (("3.", 2), ("4.", 7), ("5.", 2), ("6.", 7), ("A.", 16), ("B.", 10), ("C.", 9), ("D.", 17)):
        assert run(head, 1, last) <= every["zero_loss"], head
    for head, last in (("4.", 6), ("5.", 4), ("B.", 6), ("D.", 1), ("E.", 1)):
        assert run(head, 1, last) <= every["noise_equilibrium"], head
    assert figures["zero_loss"] == run("", 1, 2)
    assert figures["noise_equilibrium"] == run("", 1, 9)


def test_every_numbered_equation_has_an_entry():
    last = {"heterogeneity": 127, "zero_loss": 69, "noise_equilibrium": 132}
    for paper in last:
        covered = set()
        for entry in coverage():
            if entry.paper == paper:
                for first, end in re.findall(r"\((\d+)\)(?:-\((\d+)\))?", entry.result):
                    covered |= set(range(int(first), int(end or first) + 1))
        assert covered == set(range(1, last[paper] + 1)), paper


def test_an_erratum_is_decided_by_a_claim_that_covers_a_result_of_its_paper():
    for erratum in errata():
        if erratum.claim is not None:
            assert any(entry.paper == erratum.paper for entry in of(erratum.claim)), erratum.place
