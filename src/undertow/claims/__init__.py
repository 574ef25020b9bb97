"""What the papers claim, as experiments with verdicts. `registry` holds them all."""

from undertow.claims.registry import registry

__all__ = ["registry"]
