"""Find experiments by name: the claims and phase diagrams of the packs, and objects of a user's own file.

A pack is a package with a subpackage `claims`, whose modules list their `CLAIMS`, a module `coverage` and, where it has
them, modules `errata` and `phase_diagram` with its `ERRATA` and its `DIAGRAM`. Packs are
imported the first time that one of their experiments is needed.
"""

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from undertow.execution.provenance import Parameter, Parameters
from undertow.execution.sweeps.diagram import Diagram

if TYPE_CHECKING:
    from jaxtyping import Array, Key

__all__ = [
    "AbstractClaim",
    "Registry",
    "UserFileError",
    "claims",
    "collect",
    "diagrams",
    "exit_message",
    "import_claims",
    "load_file",
]

PACKS = (
    "undertow.papers.heterogeneity",
    "undertow.papers.zero_loss",
    "undertow.papers.noise_equilibrium",
    "undertow.papers.optimisers",
)

T = TypeVar("T")


class UserFileError(Exception):
    """A user's file, or the object named in it, cannot be used; the message says why."""


@runtime_checkable
class AbstractClaim(Protocol):
    """A claim, as far as running its experiment needs; `undertow.verification.Claim` is not imported here."""

    id: str
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


class Registry(Mapping[str, T], Generic[T]):
    """Experiments of one kind by name, loaded the first time one is needed.

    >>> from undertow.verification import claims
    >>> "sensing-factor-two" in claims
    True
    """

    def __init__(self, kind: str, load: Callable[[], dict[str, T]]) -> None:
        self.kind, self._load, self._loaded = kind, load, None

    def loaded(self) -> dict[str, T]:
        """Return all experiments of this kind; import the packs on the first call."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def __getitem__(self, name: str) -> T:
        experiments = self.loaded()
        if name not in experiments:
            raise KeyError(self.unknown(name))
        return experiments[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.loaded())

    def __len__(self) -> int:
        return len(self.loaded())

    def unknown(self, name: str) -> str:
        """Return the error message for a name that does not exist, with the nearest names that do."""
        near = difflib.get_close_matches(name, list(self), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`undertow list` shows them all."
        return f"there is no {self.kind} {name!r}; {hint}"


def _load_claims() -> dict[str, AbstractClaim]:
    by_id: dict[str, AbstractClaim] = {}
    for pack in PACKS:
        paper = pack.rpartition(".")[2]
        package = importlib.import_module(f"{pack}.claims")
        for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
            loaded = importlib.import_module(f"{pack}.claims.{module}")
            for claim in loaded.CLAIMS:
                if claim.id in by_id:
                    raise ValueError(f"two claims have the id {claim.id!r}")
                if claim.paper != paper:
                    raise ValueError(f"claim {claim.id!r} is in the folder of another paper")
                by_id[claim.id] = replace(claim, module=loaded.__name__)
    return by_id


def _load_diagrams() -> dict[str, Diagram]:
    return {module.DIAGRAM.id: module.DIAGRAM for module in _modules("phase_diagram")}


def _modules(name: str) -> list[ModuleType]:
    """Import the modules of one name, of the packs that have it."""
    present = [f"{pack}.{name}" for pack in PACKS if importlib.util.find_spec(f"{pack}.{name}") is not None]
    return [importlib.import_module(module) for module in present]


claims: Registry[AbstractClaim] = Registry("claim", _load_claims)
"""All claims by id, of the type `undertow.verification.Claim`."""
diagrams: Registry[Diagram] = Registry("phase diagram", _load_diagrams)
"""All phase diagrams by id."""


def import_claims() -> None:
    """Import the packs with all claims, which takes seconds."""
    claims.loaded()


def collect(module: str, name: str, kind: type[T]) -> tuple[T, ...]:
    """Join the tuples of one kind that the packs have under one name, such as `ERRATA` of their modules `errata`."""
    items = tuple(item for loaded in _modules(module) for item in getattr(loaded, name))
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"`{name}` of a module `{module}` holds {item!r}; give a {kind.__name__}.")
    return items


def exit_message(stop: SystemExit) -> str:
    """Return the sentence for code of the user that ended the program."""
    given = "" if stop.code is None else repr(stop.code)
    return f'it calls sys.exit({given}); put that below `if __name__ == "__main__":`.'


def load_file(file: Path) -> ModuleType:
    """Run a user's Python file and return it as a module; modules beside the file can be imported."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UserFileError(f"{file}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SystemExit as stop:
        raise UserFileError(f"{file} cannot be run: {exit_message(stop)}") from stop
    except Exception as error:
        raise UserFileError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module
