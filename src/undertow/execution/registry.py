"""Find experiments by name: the claims and phase diagrams of the installed packs, and objects of a user's own file.

A pack (`undertow.execution.packs`) may have a module `phase_diagram` with its `DIAGRAM`. Packs are imported the first
time that one of their experiments is needed.
"""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from undertow.execution.error_text import error_message
from undertow.execution.packs import (
    OWN_PACKS,
    AbstractClaim,
    claim_modules,
    installed_packs,
    named_claims,
    pack_name,
    submodule,
    typed,
)  # fmt: skip
from undertow.execution.sweeps.diagram import Diagram

__all__ = [
    "AbstractClaim", "Registry", "UserFileError", "claims", "collect", "diagrams", "exit_message", "import_claims",
    "installed_problems", "load_file", "similar_names", "titles",
]  # fmt: skip

T = TypeVar("T")


class UserFileError(Exception):
    """A user's file, or the object named in it, cannot be used; the message says why."""


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

    def unknown(self, name: str, others: Iterable[str] = ()) -> str:
        """Return the error message for a name that is neither in the registry nor in `others`, with similar names."""
        near = similar_names(name, [*self, *others])
        hint = f"did you mean {' or '.join(near)}?" if near else "`undertow list` shows them all."
        return f"there is no {self.kind} {name!r}; {hint}"


def similar_names(name: str, names: Iterable[str]) -> list[str]:
    """Return at most three of `names`, the most similar first: those spelt like `name`, and those that contain it.

    >>> from undertow.execution.registry import similar_names
    >>> similar_names("recovry", ["recovery", "motor-speed"])
    ['recovery']
    >>> similar_names("motor", ["recovery", "motor-speed"])
    ['motor-speed']
    """
    candidates = list(dict.fromkeys(names))
    spelt = difflib.get_close_matches(name, candidates, n=3, cutoff=0.7)
    contain = [one for one in candidates if len(name) > 2 and name.lower() in one.lower()]
    return list(dict.fromkeys(spelt + contain))[:3]


@cache
def _installed() -> tuple[dict[str, AbstractClaim], list[str]]:
    """Return the claims of all installed packs by name, and what is wrong with packs of others."""
    by_id: dict[str, AbstractClaim] = {}
    problems: list[str] = []
    for pack in installed_packs():
        try:
            modules = claim_modules(pack)
            plants = getattr(submodule(pack, "plants"), "PLANTS", {})
        except Exception as error:
            if pack in OWN_PACKS:
                raise
            problems.append(f"the installed pack {pack} cannot be imported: {type(error).__name__}: {error}")
            continue
        for module in modules:
            named, wrong = named_claims(module, pack_name(pack), plants)
            problems += wrong
            for claim in named:
                if claim.id in by_id:
                    first = by_id[claim.id].paper
                    problems.append(
                        f"the installed packs {first} and {pack} have a claim {claim.id!r} each; the first is used."
                    )
                by_id.setdefault(claim.id, claim)
    return by_id, problems


def installed_problems() -> list[str]:
    """Return what is wrong with installed packs, in sentences; other packs are not affected."""
    return _installed()[1]


def _submodules(name: str) -> list[ModuleType]:
    """Import the submodules of one name of all packs; packs of others that cannot be imported have none."""
    found = []
    for pack in installed_packs():
        try:
            found.append(submodule(pack, name))
        except Exception:
            if pack in OWN_PACKS:
                raise
    return found


def _load_diagrams() -> dict[str, Diagram]:
    found = [module.DIAGRAM for module in _submodules("phase_diagram") if hasattr(module, "DIAGRAM")]
    return {diagram.id: diagram for diagram in found}


claims: Registry[AbstractClaim] = Registry("claim", lambda: _installed()[0])
"""All claims by id, of the type `undertow.verification.Claim`."""
diagrams: Registry[Diagram] = Registry("phase diagram", _load_diagrams)
"""All phase diagrams by id."""


def import_claims() -> None:
    """Import the packs with all claims, which takes seconds."""
    claims.loaded()


def collect(module: str, name: str, kind: type[T]) -> tuple[T, ...]:
    """Join the tuples of one kind that the packs have under one name, such as `ERRATA` of their modules `errata`."""
    return typed(name, (item for home in _submodules(module) for item in getattr(home, name, ())), kind)


@cache
def titles() -> dict[str, str]:
    """Return the title of every installed pack by its name."""
    return {pack_name(home.__name__): home.TITLE for home in _submodules("") if hasattr(home, "TITLE")}


def exit_message(stop: SystemExit) -> str:
    """Return the sentence for code of the user that ended the program."""
    given = "" if stop.code is None else repr(stop.code)
    return f'it calls sys.exit({given}); put that below `if __name__ == "__main__":`.'


def load_file(file: Path, name: str | None = None) -> ModuleType:
    """Run a user's Python file and return it as a module; modules beside the file can be imported.

    Under a `name` the module is also in `sys.modules`, where dataclasses and `inspect` look for it.
    """
    spec = importlib.util.spec_from_file_location(name or file.stem, file)
    if spec is None or spec.loader is None:
        raise UserFileError(f"{file}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    if name is not None:
        sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SystemExit as stop:
        raise UserFileError(f"{file} cannot be run: {exit_message(stop)}") from stop
    except Exception as error:
        raise UserFileError(f"{file} cannot be run: {error_message(error)}") from error
    finally:
        sys.path.pop(0)
    return module
