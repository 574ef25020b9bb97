"""Claims, criteria, the runner and the report."""

from undertow.execution.registry import Registry, claims
from undertow.verification.claim import Claim

__all__ = ["Claim", "claims"]

claims: Registry[Claim]
