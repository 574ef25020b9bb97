"""The errata of the papers, and the verdicts that they imply."""

from dataclasses import dataclass
from functools import cache

from undertow.execution.registry import collect
from undertow.verification.claim import Paper
from undertow.verification.criterion import Verdict

__all__ = ["Erratum", "errata", "expected"]


@dataclass(frozen=True)
class Erratum:
    """One correction, with the claim whose measurement decides it; None if reading the paper decides it."""

    paper: Paper
    place: str
    printed: str
    right: str
    claim: str | None


@cache
def errata() -> tuple[Erratum, ...]:
    """Return the errata of all papers, in the order of the papers.

    >>> from undertow.verification.errata import errata
    >>> errata()[0].place
    'Eq. (2) against Eq. (3)'
    """
    return collect("errata", "ERRATA", Erratum)


def expected(claim_id: str) -> Verdict:
    """Return `corrected` for a claim that decides an erratum, and `holds` for all others."""
    return "corrected" if any(erratum.claim == claim_id for erratum in errata()) else "holds"
