"""`undertow list`: show the claims."""

import dataclasses
import shutil
import textwrap
from typing import Literal

from undertow.cli._status import SUCCESS

__all__ = ["List", "list_claims"]


@dataclasses.dataclass(frozen=True)
class List:
    """Show all claims with their places in the papers and the verdicts expected of them."""

    paper: Literal["heterogeneity", "zero_loss", "noise_equilibrium", "optimisers"] | None = None
    """Only the claims of one paper."""


def list_claims(command: List) -> int:
    """Print the claims with their places and expected verdicts."""
    from undertow.verification import claims
    from undertow.verification.errata import expected

    width = min(110, shutil.get_terminal_size().columns)
    for claim in claims.values():
        if command.paper in (None, claim.paper):
            print(f"{claim.id:<28} {claim.paper}, {claim.place}; expected: {expected(claim.id)}")
            print(textwrap.fill(claim.statement, width, initial_indent="    ", subsequent_indent="    "))
    return SUCCESS
