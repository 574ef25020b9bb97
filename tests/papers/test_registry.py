"""The set of claims: complete, consistent with the errata, with the same criterion at every scale."""

import dataclasses

import jax
import pytest

from undertow.verification import claims
from undertow.verification.claim import PAPERS, SCALES, Claim, draw_checks, overall
from undertow.verification.dependencies import dependency_problems
from undertow.verification.errata import errata, expected

CLAIMS = list(claims.values())


def test_every_paper_has_claims():
    assert {claim.paper for claim in CLAIMS} == set(PAPERS)
    assert len(CLAIMS) == len(claims) >= 8


def test_every_claim_has_a_figure_of_its_own():
    """A plot says more than the checks beside their predictions, which the table of a report has."""
    assert [claim.id for claim in CLAIMS if claim.draw is draw_checks] == []


def test_errata_and_claims_agree():
    for erratum in errata():
        if erratum.claim is None:
            continue
        claim = claims[erratum.claim]
        assert claim.paper == erratum.paper
        assert expected(claim.id) == "corrected"
    decided = {erratum.claim for erratum in errata()}
    assert all(expected(claim.id) == "holds" for claim in CLAIMS if claim.id not in decided)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_parameters_are_documented_plain_values(claim):
    kinds = {type(claim.scales[scale]) for scale in SCALES}
    (kind,) = kinds
    assert kind.__doc__
    for field in dataclasses.fields(kind):
        assert all(isinstance(getattr(claim.scales[s], field.name), int | float | str | bool) for s in SCALES)
    source = __import__("inspect").getsource(kind)
    assert source.count('"""') == 2 * (1 + len(dataclasses.fields(kind))), f"{kind.__name__}: a sentence for each field"


def test_no_claim_rests_on_a_missing_one_or_on_itself():
    assert not dependency_problems(claims)
    assert sum(bool(claim.rests_on) for claim in CLAIMS) > 50


def test_the_error_for_an_unknown_claim_suggests_the_nearest():
    with pytest.raises(KeyError, match="did you mean label-noise-escapes"):
        claims["label-noise-escape"]
    assert "undertow list" in claims.unknown("qqqqqqq")


def test_a_claim_needs_every_scale():
    parameters = CLAIMS[0].scales["smoke"]
    with pytest.raises(ValueError, match="smoke, default, full"):
        Claim("x", lambda p, k: None, scales={"smoke": parameters})


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_verdict_at_smoke_scale_with_other_randomness(claim, x64):
    """The report uses seed 0; another seed must not change a verdict. One run could miss a sample that is too small."""
    judged = [overall(claim.measure(claim.scales["smoke"], jax.random.key(seed))) for seed in range(1234, 1238)]
    assert [verdict for verdict, _ in judged] == [expected(claim.id)] * 4, judged
