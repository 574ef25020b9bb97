"""Claims, criteria, the runner and the report."""

from typing import cast

from undertow.execution import registry
from undertow.verification.claim import Claim

__all__ = ["Claim", "claims"]

claims = cast("registry.Registry[Claim]", registry.claims)
