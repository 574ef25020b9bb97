"""Claims, criteria, the runner and the report. A claim in a file of one's own needs no more than these names."""

from typing import cast

from undertow.execution import registry
from undertow.verification.claim import Claim, Measurement
from undertow.verification.coverage import Addition, Entry
from undertow.verification.criterion import Above, AtLevel, Below, Check, Within
from undertow.verification.errata import Erratum
from undertow.verification.plant import replaced

__all__ = [
    "Above", "Addition", "AtLevel", "Below", "Check", "Claim", "Entry", "Erratum", "Measurement", "Within", "claims",
    "replaced",
]  # fmt: skip

claims = cast("registry.Registry[Claim]", registry.claims)
"""The claims of the installed packs by name."""
