"""The errata of the papers, and the verdicts that they imply."""

from dataclasses import dataclass
from functools import cache

from undertow.execution.registry import collect
from undertow.execution.user_packs import user_pack
from undertow.verification.criterion import Verdict

__all__ = ["Erratum", "errata", "errata_of", "expected", "user_errata"]


@dataclass(frozen=True)
class Erratum:
    """One correction, with the claim whose measurement decides it; None if reading the paper decides it.

    A pack lists its errata under the name `ERRATA`. The verdict of a claim that decides an erratum is `corrected`.

    >>> from undertow.verification import Erratum
    >>> ERRATA = (Erratum("balance", "Eq. (7)", printed="eta/2", right="eta/4", claim="norms-balance"),)
    >>> print(f"{ERRATA[0].place}: {ERRATA[0].right}, printed as {ERRATA[0].printed}")
    Eq. (7): eta/4, printed as eta/2
    """

    paper: str
    place: str
    printed: str
    right: str
    claim: str | None


@cache
def errata() -> tuple[Erratum, ...]:
    """Return the errata of all installed packs, in the order of the packs.

    >>> from undertow.verification.errata import errata
    >>> errata()[0].place
    'Eq. (2) against Eq. (3)'
    """
    return collect("errata", "ERRATA", Erratum)


def user_errata(source: str) -> tuple[Erratum, ...]:
    """Return the errata of a user's file or folder."""
    return user_pack(source).collect("ERRATA", Erratum)


def errata_of(claim_id: str, source: str = "") -> tuple[Erratum, ...]:
    """Return the errata that a claim decides; `source` is the file or folder of a user's claim."""
    return tuple(entry for entry in (user_errata(source) if source else errata()) if entry.claim == claim_id)


def expected(claim_id: str, source: str = "", *, planted: bool = False) -> Verdict:
    """Return `corrected` for a claim that decides an erratum, and `holds` for others; `fails` in its plant."""
    if planted:
        return "fails"
    return "corrected" if errata_of(claim_id, source) else "holds"
