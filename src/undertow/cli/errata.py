"""`undertow errata`: show the errors of the papers."""

import dataclasses
import json
from typing import Annotated

import tyro

from undertow.cli._status import SUCCESS, complain
from undertow.cli.verify import Names

__all__ = ["Errata", "show_errata"]


@dataclasses.dataclass(frozen=True)
class Errata:
    """Show the errors of the papers, the corrections, and the claim that decides each."""

    files: Annotated[Names, tyro.conf.arg(metavar="[FILE.py|FOLDER ...]", help_behavior_hint="")] = ()
    """Your own files of claims; by default all installed packs."""
    json: bool = False
    """Print the list as JSON, for other programs."""


def show_errata(command: Errata) -> int:
    """Print the errata as text or as JSON."""
    from undertow.execution.registry import UserFileError
    from undertow.verification.errata import errata, user_errata

    try:
        own = [(erratum, file) for file in command.files for erratum in user_errata(file)]
    except UserFileError as error:
        return complain(str(error))
    listed = own if command.files else [(erratum, "") for erratum in errata()]
    if command.json:
        print(json.dumps([dataclasses.asdict(erratum) for erratum, _ in listed], indent=1))
        return SUCCESS
    if not listed:
        print("no errata")
    for erratum, file in listed:
        print(f"{erratum.paper}, {erratum.place}")
        print(f"  printed: {erratum.printed}")
        print(f"  right:   {erratum.right}")
        name = f"{file}:{erratum.claim}" if file.endswith(".py") else file or erratum.claim
        decided = f"undertow verify {name}" if erratum.claim else "by reading the paper"
        print(f"  decided: {decided}\n")
    return SUCCESS
