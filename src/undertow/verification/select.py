"""Choose claims by what a user writes: names of claims, installed packs, FILE.py, FILE.py:NAME and folders."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from undertow.execution.registry import UserFileError, installed_problems
from undertow.execution.user_packs import Pack, user_pack
from undertow.verification import claims
from undertow.verification.claim import Claim
from undertow.verification.coverage import user_coverage
from undertow.verification.dependencies import dependency_problems
from undertow.verification.errata import user_errata

__all__ = ["Chosen", "Selection", "UnknownClaimError", "is_source", "select", "source_of"]


class UnknownClaimError(Exception):
    """Error for a name that no claim, pack or file has; the message lists similar names."""


@dataclass(frozen=True)
class Chosen:
    """A claim, and the user's file or folder that has it; no source where it is of an installed pack."""

    claim: Claim
    source: str = ""


@dataclass(frozen=True)
class Selection:
    """The chosen claims, and what is wrong with others, in sentences."""

    chosen: list[Chosen]
    problems: list[str]


def select(names: Sequence[str] = (), paper: str | None = None) -> Selection:
    """Return the claims of the given names, or all claims of the installed packs, less those of other papers.

    A name is that of a claim, of an installed pack, or FILE.py, FILE.py:NAME or a folder.
    """
    chosen: list[Chosen] = []
    problems: list[str] = []
    for name in names:
        found, wrong = _user_claims(name) if is_source(name) else (_of_packs(name), [])
        chosen += [one for one in found if one not in chosen]
        problems += [sentence for sentence in wrong if sentence not in problems]
    if not names:
        chosen, problems = [Chosen(claim) for claim in claims.values()], list(installed_problems())
    papers = dict.fromkeys(claim.paper for claim in (*claims.values(), *(one.claim for one in chosen)))
    if paper is not None and paper not in papers:
        raise UnknownClaimError(f"--paper {paper}: there is no such paper; the papers are {', '.join(papers)}.")
    chosen, wrong = _consistent([one for one in chosen if paper in (None, one.claim.paper)])
    return Selection(chosen, problems + wrong)


def _consistent(chosen: list[Chosen]) -> tuple[list[Chosen], list[str]]:
    """Return the claims without those that rest on missing ones or have the name of another, in their order.

    The order of the result does not depend on the order of the names: a user's own claims come first, then those of
    the packs in the order of the packs.
    """
    own = [one for one in chosen if one.source]
    installed = [one for one in chosen if not one.source]
    problems: list[str] = []
    if installed:
        wrong = dependency_problems(claims)
        problems += dict.fromkeys(wrong[one.claim.id] for one in installed if one.claim.id in wrong)
        order = list(claims)
        installed = [one for one in installed if one.claim.id not in wrong]
        installed.sort(key=lambda one: order.index(one.claim.id))
    counts = Counter(one.claim.id for one in (*own, *installed))
    for name in (name for name, count in counts.items() if count > 1):
        places = (one.source or f"the pack {one.claim.paper}" for one in (*own, *installed) if one.claim.id == name)
        problems.append(f"{' and '.join(places)}: two claims have the name {name!r}; neither is run.")
    return [one for one in (*own, *installed) if counts[one.claim.id] == 1], problems


def is_source(name: str) -> bool:
    """Whether a name is that of a user's file, of an object in one, or of a folder."""
    return source_of(name).endswith(".py") or Path(name).is_dir()


def source_of(name: str) -> str:
    """Return the file of FILE.py:NAME, and other names as they are."""
    file, colon, _ = name.rpartition(":")
    return file if colon and file.endswith(".py") else name


def _of_packs(name: str) -> list[Chosen]:
    """Return the installed claim of this name, or all claims of the installed pack of this name."""
    if name in claims:
        return [Chosen(claims[name])]
    of_pack = [Chosen(claim) for claim in claims.values() if claim.paper == name]
    if not of_pack:
        raise UnknownClaimError(claims.unknown(name, [claim.paper for claim in claims.values()]))
    return of_pack


def _user_claims(name: str) -> tuple[list[Chosen], list[str]]:
    """Return the claims of a file, of one object in a file, or of a folder, and what is wrong with others."""
    source = source_of(name)
    pack = user_pack(source)
    user_errata(source), user_coverage(source)  # mistakes in them are found before a claim runs
    own = cast("dict[str, Claim]", pack.claims)
    elsewhere = {other for claim in own.values() for other in claim.rests_on} - set(own)
    wrong = dependency_problems(own, claims if elsewhere else ())
    if source == name:
        kept = [Chosen(claim, source) for claim in own.values() if claim.id not in wrong]
        return kept, [*pack.problems, *dict.fromkeys(wrong.values())]
    wanted = _named(pack, source, name.rpartition(":")[2])
    return ([], [wrong[wanted]]) if wanted in wrong else ([Chosen(own[wanted], source)], [])


def _named(pack: Pack, source: str, name: str) -> str:
    """Return the name of the claim of a file that has this id, or is in the variable of this name."""
    held = [vars(module)[name] for module in pack.modules if name in vars(module)]
    ids = [name, name.replace("_", "-"), *(getattr(value, "id", "") for value in held)]
    found = next((one for one in ids if one in pack.claims), None)
    if found is None:
        raise UserFileError(f"{source} has no claim {name!r}; it has {', '.join(pack.claims) or 'none'}.")
    return found
