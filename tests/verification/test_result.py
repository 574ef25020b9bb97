"""The records of verification survive the way to disk and back."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from undertow.execution.provenance import Provenance
from undertow.execution.store import StoreError, save_folder
from undertow.verification import claims
from undertow.verification.criterion import Above, AtLevel, Below, Check, TextCriterion, Within, criterion_from_json
from undertow.verification.errata import expected
from undertow.verification.result import (
    CheckResult,
    ClaimResult,
    Task,
    claim_folder,
    read_result,
    read_results,
    store_result,
    write_results,
)

CRITERIA = (Within(0.05, 0.5), Below(0.1), Above(1e-9), AtLevel(1e-3, "Kolmogorov-Smirnov"))
DOCS = Path(__file__).parents[2] / "docs"


def result(**more) -> ClaimResult:
    task = Task("sensing-factor-two", "smoke", {"d": 4, "eta": 0.1, "flag": True, "name": "x"}, 3, "abc")
    checks = tuple(CheckResult("q", 1.0, 1.0, 0.1, criterion, "holds", alternative=2.0) for criterion in CRITERIA)
    fields = {
        "verdict": "holds", "expected": "corrected", "checks": checks, "paper": "heterogeneity", "seeds": 7,
        "seconds": 2.0, "compile_seconds": 0.5, "meanings": {"d": "Dimensions."},
        "provenance": Provenance("1.0", "cpu: cpu", {"d": 4}, 7, 2.0, True, {"jax": "0.10", "zarr": None}),
    }  # fmt: skip
    return ClaimResult(task=task, **fields | more)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_criterion_is_stored_as_data(criterion):
    stored = json.loads(json.dumps(criterion.to_json()))
    assert stored["kind"] == criterion.kind
    assert criterion_from_json(stored) == criterion


def test_a_criterion_of_an_unknown_kind_raises():
    with pytest.raises(ValueError, match="'near' is none of within, below, above, level"):
        criterion_from_json({"kind": "near", "bound": 1.0})


@pytest.mark.parametrize("more", [{}, {"checks": (), "verdict": "error", "provenance": None, "note": "it broke"}])
def test_a_result_is_read_as_it_was_written(more):
    stored = json.loads(json.dumps(result(**more).to_json()))
    assert ClaimResult.from_json(stored) == result(**more)


def test_the_stored_object_is_flat_and_has_the_numbers_of_the_first_check():
    stored = result().to_json()
    assert stored["claim"] == "sensing-factor-two"
    assert stored["measured"] == stored["predicted"] == 1.0
    assert stored["criterion"] == {"kind": "within", "tolerance": 0.05, "resolution": 0.5}
    assert stored["run_seconds"] == 1.5
    assert result(checks=()).to_json()["measured"] is None


def test_a_check_is_judged_when_its_result_is_made():
    check = CheckResult.of(Check("q", 1.0, 1.0, 0.01, Within(0.1, 0.5), alternative=9.0), seeds=50)
    assert check.verdict == "holds"
    assert check.power == pytest.approx(1.0)


def test_results_that_stored_criteria_as_text_are_read():
    stored = result().to_json()
    for check in stored["checks"]:
        check["criterion"] = "below 0.1 by 4 standard errors"
    read = ClaimResult.from_json(stored | {"an_old_field": 1})
    assert read.checks[0].criterion == TextCriterion("below 0.1 by 4 standard errors")
    assert ClaimResult.from_json(read.to_json()) == read


@pytest.mark.parametrize("folder", ["gallery", "full"])
def test_the_stored_files_of_the_documentation_are_read(folder):
    results = [ClaimResult.from_json(r) for r in json.loads((DOCS / folder / "results.json").read_text())]
    newer = {name for name, claim in claims.items() if claim.paper == "optimisers"}  # than the full report
    assert {r.claim for r in results} == set(claims) - (newer if folder == "full" else set())
    for r in results:
        assert r.checks
        assert r.provenance is not None
        assert r.expected == expected(r.claim)
        assert not any(isinstance(check.criterion, TextCriterion) for check in r.checks)


def test_results_of_a_folder(tmp_path):
    write_results(tmp_path, [result(), result(checks=())])
    assert read_results(tmp_path) == [result(), result(checks=())]
    for content in ("{", "[1]", '[{"claim": "x"}]', '{"a": 1}'):
        (tmp_path / "results.json").write_text(content)
        with pytest.raises(StoreError, match="damaged"):
            read_results(tmp_path)
    with pytest.raises(StoreError, match=r"no results.json here"):
        read_results(tmp_path / "nowhere")


def test_the_folder_of_a_claim_takes_precedence_over_the_list(tmp_path):
    """A verification with another seed was killed before it wrote results.json: its figures are beside its numbers."""
    write_results(tmp_path, [result(), result(checks=())])
    newer = replace(result(), task=replace(result().task, seed=4), seeds=9)
    store_result(tmp_path, newer, {"figure.svg": b"<svg/>"})
    warnings = []
    assert read_results(tmp_path, warnings.append)[0] == newer
    assert warnings == []
    (tmp_path / "claims" / newer.claim / "figure.svg").write_bytes(b"<svg />")
    assert read_results(tmp_path, warnings.append)[0] == result()
    assert re.search("sensing-factor-two has no figure in the report: .*damaged, figure.svg", warnings[0])


def test_a_sealed_file_that_is_no_result_is_damage(tmp_path):
    save_folder(claim_folder(tmp_path, "a"), {"result.json": b"[]"}, {})
    with pytest.raises(StoreError, match=r"a: damaged, result.json is not a result"):
        read_result(tmp_path, "a")
