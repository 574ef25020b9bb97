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
    """Print the claims with their places and expected verdicts."""
    from undertow.execution.registry import UserFileError
    from undertow.verification.errata import expected
    from undertow.verification.select import UnknownClaimError, select

    try:
        selection = select(command.claims, command.paper)
    except (UnknownClaimError, UserFileError) as error:
        return complain(str(error))
    if command.json:
        print(json.dumps([_record(one) for one in selection.chosen], indent=1))
    else:
        width = min(110, shutil.get_terminal_size().columns)
        for one in selection.chosen:
            place = ", ".join(filter(None, [one.claim.paper, one.claim.place]))
            print(f"{one.claim.id:<28} {place}; expected: {expected(one.claim.id, one.source)}")
            print(textwrap.fill(one.claim.statement, width, initial_indent="    ", subsequent_indent="    "))
    for problem in selection.problems:
        complain(problem)
    return MISTAKE if selection.problems else SUCCESS


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
