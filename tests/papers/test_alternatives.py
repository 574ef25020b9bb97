"""Every claim names an alternative and fails under a patch that makes the alternative true."""

import importlib

import jax
import pytest

from undertow.verification import claims
from undertow.verification.claim import PAPERS, overall

CLAIMS = list(claims.values())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_every_claim_names_its_alternative(claim):
    assert len(claim.alternative) > 20, "state in one sentence what the experiment must be able to reject"
    assert claim.plant is not None


@pytest.mark.parametrize("paper", PAPERS)
def test_every_plant_belongs_to_a_claim(paper):
    plants = importlib.import_module(f"undertow.papers.{paper}.plants").PLANTS
    assert set(plants) == {claim.id for claim in CLAIMS if claim.paper == paper}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_every_plant_replaces_an_existing_name(claim):
    with claim.plant():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_a_claim_fails_under_its_alternative(claim, x64):
    jax.clear_caches()  # programs traced before the patch would run without it
    with claim.plant():
        measurement = claim.measure(claim.scales["smoke"], jax.random.key(7))
    verdict, _ = overall(measurement)
    assert verdict == "fails", [(check.what, check.measured, check.predicted) for check in measurement.checks]


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_every_claim_has_a_check_with_the_value_of_the_alternative(claim, x64):
    """The report needs the prediction of the alternative to state the power of a check; controls are declared."""
    measurement = claim.measure(claim.scales["smoke"], jax.random.key(8))
    stated = [check.alternative is not None for check in measurement.checks]
    assert any(stated)
    assert all(stated) or claim.controls
