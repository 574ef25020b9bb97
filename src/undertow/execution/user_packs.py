"""Packs of claims in a user's files: one file, or all files of a folder whose names do not start with an underscore.

The file of a claim can be anywhere. It has the form of an installed pack (`undertow.execution.packs`), with `TITLE`,
`ERRATA`, `COVERAGE` and `BEYOND` among its variables.
"""

import ast
import hashlib
import itertools
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from undertow.execution.packs import AbstractClaim, named_claims, typed
from undertow.execution.registry import UserFileError, load_file

__all__ = ["Pack", "digest_with_neighbours", "user_pack"]

T = TypeVar("T")


@dataclass(frozen=True)
class Pack:
    """The claims of a user's file or folder by name, its modules, and what is wrong with it, in sentences."""

    name: str
    claims: dict[str, AbstractClaim]
    modules: tuple[ModuleType, ...]
    problems: tuple[str, ...]

    @property
    def title(self) -> str:
        """The title of the pack; its name where no module states one."""
        return next((str(module.TITLE) for module in self.modules if hasattr(module, "TITLE")), self.name)

    def collect(self, name: str, kind: type[T]) -> tuple[T, ...]:
        """Return the joined tuples of one kind that its modules have under a name, such as `ERRATA`."""
        several = [getattr(module, name, ()) for module in self.modules]
        for items in several:
            if not isinstance(items, tuple | list):
                raise UserFileError(f"{self.name}: `{name}` is {items!r}; give a tuple of objects of {kind.__name__}.")
        try:
            return typed(name, itertools.chain(*several), kind)
        except TypeError as error:
            raise UserFileError(f"{self.name}: {error}") from error


@cache
def user_pack(source: str) -> Pack:
    """Return the pack of a user's file, or of all files of a folder; raise `UserFileError` if there is no claim."""
    path = Path(source)
    if not path.exists():
        raise UserFileError(f"{source}: there is no such file.")
    files = sorted(f for f in path.glob("*.py") if not f.name.startswith("_")) if path.is_dir() else [path]
    name = path.resolve().stem
    named: list[tuple[AbstractClaim, str]] = []
    modules, problems = [], []
    for file in files:
        try:
            module = load_file(file, f"claims_{zlib.crc32(str(file.resolve()).encode()):08x}_{file.stem}")
        except UserFileError as error:
            problems.append(str(error))
            continue
        modules.append(module)
        found, wrong = named_claims(module, name)
        named += [(claim, file.name) for claim in found]
        problems += wrong
    counts = Counter(claim.id for claim, _ in named)
    for twice in (claim for claim, count in counts.items() if count > 1):
        places = " and ".join(dict.fromkeys(file for claim, file in named if claim.id == twice))
        problems.append(f"{places}: two claims have the name {twice!r}; neither is run.")
    claims = {claim.id: claim for claim, _ in named if counts[claim.id] == 1}
    if not named:
        none = f"{source}: there is no claim here; assign Claim(...) to a variable."
        raise UserFileError(" ".join(problems) or none)
    return Pack(name, claims, tuple(modules), tuple(problems))


def digest_with_neighbours(file: Path) -> str:
    """Return a hash of a Python file and of the files that it imports from its own folder, directly or not.

    For a file of an installed package the folder is the one that contains the package, and only its own modules count.
    """
    root, package = file.resolve().parent, ""
    while (root / "__init__.py").is_file():
        root, package = root.parent, root.name
    known: set[Path] = set()
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in known:
            known.add(path)
            names = (name for name in _imported(path, root) if not package or name.split(".")[0] == package)
            waiting += [found for name in names for found in _files(root, name)]
    digest = hashlib.sha256()
    for path in sorted(known):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _imported(path: Path, root: Path) -> set[str]:
    """Return the names of the modules, and of objects that may be modules, that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(root).parts[: -node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def _files(root: Path, name: str) -> list[Path]:
    """Return the files under `root` that importing a module runs: the packages around it, and its own."""
    parts = name.split(".")
    places = [root.joinpath(*parts[: k + 1]) for k in range(len(parts))]
    candidates = [*(place / "__init__.py" for place in places), places[-1].with_suffix(".py")]
    return [candidate for candidate in candidates if candidate.is_file()]
