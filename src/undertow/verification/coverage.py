"""The results of the papers with the claims that check them, or the reason why there is none.

Every pack lists the results of its paper in their order: theorems, lemmas, figures, algorithms, equations. Runs of
definitions and of tools of one proof share an entry.
"""

from dataclasses import dataclass
from functools import cache

from undertow.execution.registry import collect
from undertow.execution.user_packs import user_pack

__all__ = [
    "ALGEBRA", "CONSTANTS", "DEFINITION", "TEXTBOOK", "TOOL", "Addition", "Entry", "additions", "coverage", "of",
    "user_coverage",
]  # fmt: skip

TOOL = "a tool of the proof, used nowhere else"
CONSTANTS = "a bound with unnamed constants"
TEXTBOOK = "textbook"
DEFINITION = "a definition"
ALGEBRA = "algebra of the proof; its result is checked"


@dataclass(frozen=True)
class Entry:
    """One result of a paper, its statement (`says`), and the claims that check it or the reason why there are none.

    A pack lists its entries under the name `COVERAGE`.

    >>> from undertow.verification import Entry
    >>> COVERAGE = (
    ...     Entry("balance", "Theorem 1", "Noise balances the norms of two layers.", claims=("norms-balance",)),
    ...     Entry("balance", "Lemma 2", "The flow is Lipschitz.", reason="a tool of the proof, used nowhere else"),
    ... )
    >>> [entry.result for entry in COVERAGE if not entry.claims]
    ['Lemma 2']
    """

    paper: str
    result: str
    says: str
    claims: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Addition:
    """A claim that no paper makes, and what it adds to the papers.

    A pack lists its additions under the name `BEYOND`.

    >>> from undertow.verification import Addition
    >>> BEYOND = (Addition("norms-balance-under-momentum", "The time to balance shortens by the factor 1 - beta."),)
    >>> BEYOND[0].claim
    'norms-balance-under-momentum'
    """

    claim: str
    adds: str


@cache
def coverage() -> tuple[Entry, ...]:
    """Return every result of the papers, in their order."""
    return collect("coverage", "COVERAGE", Entry)


@cache
def additions() -> tuple[Addition, ...]:
    """Return the claims that no sentence of a paper makes."""
    return collect("coverage", "BEYOND", Addition)


def user_coverage(source: str) -> tuple[Entry, ...]:
    """Return the results that a user's file or folder lists under `COVERAGE`."""
    return user_pack(source).collect("COVERAGE", Entry)


def of(claim: str, source: str = "") -> tuple[Entry, ...]:
    """Return the results that a claim checks; `source` is the file or folder of a user's claim.

    >>> from undertow.verification.coverage import of
    >>> [entry.result for entry in of("dphi-projector")]
    ['Lemma 4.3', 'Lemma C.2']
    """
    return tuple(entry for entry in (user_coverage(source) if source else coverage()) if claim in entry.claims)
