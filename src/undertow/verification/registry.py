"""All claims, by id. They are found by looking: every module in the three papers' folders has one `CLAIM` or more."""

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace

from undertow.verification.claim import PAPERS, Claim

__all__ = ["Registry", "registry"]


class Registry(Mapping[str, Claim]):
    """The claims by id, imported the first time one is asked for.

    >>> import undertow as ut
    >>> "sensing-factor-two" in ut.claims.registry
    True
    """

    def __init__(self) -> None:
        self._claims: dict[str, Claim] | None = None

    def __getitem__(self, claim_id: str) -> Claim:
        claims = self._load()
        if claim_id not in claims:
            raise KeyError(self.unknown(claim_id))
        return claims[claim_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def unknown(self, claim_id: str) -> str:
        """A sentence for an id that does not exist, with the nearest ones that do."""
        near = difflib.get_close_matches(claim_id, list(self), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`undertow list` shows them all."
        return f"there is no claim {claim_id!r}; {hint}"

    def _load(self) -> dict[str, Claim]:
        if self._claims is None:
            found: dict[str, Claim] = {}
            for paper in PAPERS:
                package = importlib.import_module(f"undertow.claims.{paper}")
                for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
                    loaded = importlib.import_module(f"undertow.claims.{paper}.{module}")
                    for claim in loaded.CLAIMS:
                        if claim.id in found:
                            raise ValueError(f"two claims have the id {claim.id!r}")
                        if claim.paper != paper:
                            raise ValueError(f"claim {claim.id!r} lies in the folder of another paper")
                        found[claim.id] = replace(claim, module=loaded.__name__)
            self._claims = found
        return self._claims


registry = Registry()
"""The one registry."""
