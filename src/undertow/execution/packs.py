"""Packs of claims that are installed.

A distribution names its packs under the entry point `undertow.claims`. A pack is a module, or a package with a module
or subpackage `claims`. Its claims are the tuple `CLAIMS` of each module, or else all claims among the variables of the
module. `TITLE`, `ERRATA`, `COVERAGE`, `BEYOND` and `PLANTS` (by claim) are in the module itself. The last four may be
in submodules `errata`, `coverage` and `plants`.
"""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, runtime_checkable

from undertow.execution.provenance import Parameter, Parameters

if TYPE_CHECKING:
    from jaxtyping import Array, Key

__all__ = [
    "GROUP", "OWN_PACKS", "AbstractClaim", "claim_modules", "installed_packs", "named_claims", "pack_name",
    "submodule", "typed",
]  # fmt: skip

GROUP = "undertow.claims"
"""The entry point under which distributions name their packs."""
OWN_PACKS = (
    "undertow.papers.heterogeneity",
    "undertow.papers.zero_loss",
    "undertow.papers.noise_equilibrium",
    "undertow.papers.optimisers",
)
"""The packs of undertow in their order, which is also the list where undertow is not installed as a distribution."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Names of claims, which are also names of folders and parts of addresses."""

T = TypeVar("T")


@runtime_checkable
class AbstractClaim(Protocol):
    """A claim, as far as running its experiment needs; `undertow.verification.Claim` is not imported here."""

    id: str
    paper: str
    plant: object
    rests_on: tuple[str, ...]
    COLUMNS: ClassVar[tuple[str, ...]]
    VERDICTS: ClassVar[tuple[str, ...]]

    @property
    def scales(self) -> Mapping[str, Parameters]:
        """The parameters of the experiment at each scale."""
        ...

    def parameters(self, scale: str) -> dict[str, Parameter]:
        """Return the parameters at a scale, as plain values."""
        ...

    def columns(self, parameters: Parameters, key: "Key[Array, '']") -> dict[str, list[float]]:
        """Run the experiment and return one column of numbers per name in `COLUMNS`."""
        ...


def pack_name(pack: str) -> str:
    """Return the name of an installed pack, the last part of its module.

    >>> from undertow.execution.packs import pack_name
    >>> pack_name("undertow.papers.zero_loss")
    'zero_loss'
    """
    return pack.rpartition(".")[2]


@cache
def installed_packs() -> tuple[str, ...]:
    """Return the modules of the installed packs: those of undertow in their order, then others by name."""
    found = {point.value for point in entry_points(group=GROUP)}
    own = [pack for pack in OWN_PACKS if pack in found] or OWN_PACKS
    return (*own, *sorted(found - set(OWN_PACKS)))


def submodule(pack: str, name: str) -> ModuleType:
    """Return a submodule of a pack; the pack itself where there is none."""
    module = importlib.import_module(pack)
    inside = bool(name) and hasattr(module, "__path__") and importlib.util.find_spec(f"{pack}.{name}") is not None
    return importlib.import_module(f"{pack}.{name}") if inside else module


def claim_modules(pack: str) -> list[ModuleType]:
    """Import the modules of an installed pack that have claims."""
    home = submodule(pack, "claims")
    if home.__name__ == pack or not hasattr(home, "__path__"):
        return [home]
    names = sorted(module.name for module in pkgutil.iter_modules(home.__path__))
    return [importlib.import_module(f"{home.__name__}.{name}") for name in names]


def named_claims(
    module: ModuleType, paper: str, plants: Mapping[str, object] = MappingProxyType({})
) -> tuple[list[AbstractClaim], list[str]]:
    """Return the claims of a module with their names, papers, modules and plants, and what is wrong with others."""
    place = Path(getattr(module, "__file__", None) or module.__name__).name
    variables = {id(value): name for name, value in vars(module).items() if not name.startswith("_")}
    listed = getattr(module, "CLAIMS", None)
    if listed is None:
        listed = [value for value in vars(module).values() if isinstance(value, AbstractClaim)]
    named, problems = [], []
    for claim in {id(claim): claim for claim in listed}.values():
        if not isinstance(claim, AbstractClaim):
            problems.append(f"{place}: `CLAIMS` contains a {type(claim).__name__}; give objects of the class Claim.")
            continue
        name = claim.id or variables.get(id(claim), "").replace("_", "-")
        if not NAME.fullmatch(name):
            wrong = f"the name {name!r} of a claim has over 200 characters, or others than letters, digits, hyphens"
            how = wrong if name else "a claim has no name"
            problems.append(f"{place}: {how}; give it an `id` such as 'my-claim'.")
            continue
        filled = {"id": name, "paper": claim.paper or paper, "plant": claim.plant or plants.get(name)}
        named.append(replace(claim, module=module.__name__, **filled))
    return named, problems


def typed(name: str, items: Iterable[object], kind: type[T]) -> tuple[T, ...]:
    """Return the items as a tuple; raise an error if one is of another kind."""
    result = []
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"`{name}` of a pack holds {item!r}; give objects of {kind.__name__}.")
        result.append(item)
    return tuple(result)
