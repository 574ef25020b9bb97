"""`undertow list`: show the claims."""

import dataclasses
import json
import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import tyro

from undertow.cli._status import MISTAKE, SUCCESS, complain
from undertow.cli.verify import Names

if TYPE_CHECKING:
    from undertow.execution.store import JSONObject
    from undertow.verification.select import Chosen

__all__ = ["List", "list_claims"]


@dataclasses.dataclass(frozen=True)
class List:
    """Show claims with their places in the papers and the verdicts expected of them."""

    claims: Annotated[
        Names, tyro.conf.arg(metavar="[CLAIM|PACK|FILE.py|FILE.py:NAME|FOLDER ...]", help_behavior_hint="")
    ] = ()
    """Names of claims or installed packs, or your own files of claims. All installed claims by default."""
    paper: Annotated[str | None, tyro.conf.arg(metavar="PAPER")] = None
    """Only the claims of one paper, such as zero_loss."""
    json: bool = False
    """Print the list as JSON, for other programs, with parameters, dependencies and the results that claims check."""


def list_claims(command: List) -> int:
    """Print the claims with their places and expected verdicts, with a heading for each paper if there are several."""
    from undertow.execution.registry import UserFileError
    from undertow.verification.select import UnknownClaimError, select

    try:
        selection = select(command.claims, command.paper)
    except (UnknownClaimError, UserFileError) as error:
        return complain(str(error))
    if command.json:
        print(json.dumps([_record(one) for one in selection.chosen], indent=1))
    else:
        papers: dict[tuple[str, str], list[Chosen]] = {}
        for one in selection.chosen:
            papers.setdefault((one.claim.paper, one.source), []).append(one)
        for number, (paper, chosen) in enumerate(papers.items()):
            if len(papers) > 1:
                print("\n" * (number > 0) + _heading(*paper, len(chosen)), end="\n\n")
            _print_claims(chosen)
    for problem in selection.problems:
        complain(problem)
    return MISTAKE if selection.problems else SUCCESS


def _heading(paper: str, source: str, count: int) -> str:
    """Return the title of a paper, with the name that `--paper` takes and the number of claims, underlined."""
    from undertow.execution.registry import titles
    from undertow.execution.user_packs import user_pack

    title = user_pack(source).title if source else titles().get(paper, paper)
    name = "" if title == paper else f"{paper}, "
    heading = f"{title} ({name}{count} {'claim' if count == 1 else 'claims'})"
    return f"{heading}\n{'-' * len(heading)}"


def _print_claims(chosen: "list[Chosen]") -> None:
    from undertow.verification.errata import expected

    width = min(110, shutil.get_terminal_size().columns)
    for one in chosen:
        place = ", ".join(filter(None, [one.claim.paper, one.claim.place]))
        print(f"{one.claim.id:<28} {place}; expected: {expected(one.claim.id, one.source)}")
        print(textwrap.fill(one.claim.statement, width, initial_indent="    ", subsequent_indent="    "))


def _record(one: "Chosen") -> "JSONObject":
    """Return a claim as plain values."""
    from undertow.verification.claim import SCALES
    from undertow.verification.coverage import of
    from undertow.verification.errata import errata_of, expected

    claim = one.claim
    return {
        "claim": claim.id,
        "source": one.source,
        "paper": claim.paper,
        "place": claim.place,
        "statement": claim.statement,
        "equation": claim.equation,
        "alternative": claim.alternative,
        "expected": expected(claim.id, one.source),
        "rests_on": list(claim.rests_on),
        "plant": claim.plant is not None,
        "scales": {scale: claim.parameters(scale) for scale in SCALES},
        "results": [entry.result for entry in of(claim.id, one.source)],
        "errata": [erratum.place for erratum in errata_of(claim.id, one.source)],
    }
