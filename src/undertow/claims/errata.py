"""What the papers print and what is right. Expected verdicts follow from this list alone."""

from dataclasses import dataclass

from undertow.claims.claim import Paper
from undertow.claims.criterion import Verdict

__all__ = ["ERRATA", "Erratum", "expected"]


@dataclass(frozen=True)
class Erratum:
    """One correction, with the claim whose measurement decides it."""

    paper: Paper
    place: str
    printed: str
    right: str
    claim: str


ERRATA: tuple[Erratum, ...] = (
    Erratum(
        paper="heterogeneity",
        place="Eq. (2) against Eq. (3)",
        printed="the update (3), U - eta G U, is gradient descent on the loss (2), 1/(2m) sum r^2",
        right="the gradient of (2) is 2 G U: the paper's eta is twice the step size of its own loss, "
        "or the loss is 1/(4m) sum r^2",
        claim="sensing-factor-two",
    ),
)


def expected(claim_id: str) -> Verdict:
    """`corrected` for the claims that decide an erratum, `holds` for all others."""
    return "corrected" if any(erratum.claim == claim_id for erratum in ERRATA) else "holds"
