"""`undertow errata`: show the errors of the papers."""

import dataclasses
import json

from undertow.cli._status import SUCCESS

__all__ = ["Errata", "show_errata"]


@dataclasses.dataclass(frozen=True)
class Errata:
    """Show the errors of the papers, the corrections, and the claim that decides each."""

    json: bool = False
    """Print the list as JSON, for other programs."""


def show_errata(command: Errata) -> int:
    """Print the errata as text or as JSON."""
    from undertow.verification.errata import errata

    if command.json:
        print(json.dumps([dataclasses.asdict(erratum) for erratum in errata()], indent=1))
        return SUCCESS
    for erratum in errata():
        print(f"{erratum.paper}, {erratum.place}")
        print(f"  printed: {erratum.printed}")
        print(f"  right:   {erratum.right}")
        decided = f"undertow verify {erratum.claim}" if erratum.claim else "by reading the paper"
        print(f"  decided: {decided}\n")
    return SUCCESS
