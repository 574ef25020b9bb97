"""The import closure of a module, from its source: the files that a computation may depend on.

Imports are read from the syntax tree, so that nothing is imported. Imports inside functions count; imports under
`if TYPE_CHECKING:` do not. Only modules of one package are followed, and importing a module also imports its parent
packages.
"""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import undertow

__all__ = ["Sources", "installed_sources"]


@dataclass(frozen=True)
class Sources:
    """The source files of a package.

    `public` maps names that the package itself loads on first use, such as `descend` of `undertow`, to their modules.

    >>> from undertow.execution.sources import installed_sources
    >>> closure = installed_sources().closure(["undertow.noise.label"])
    >>> "undertow.problem" in closure, "undertow.cli" in closure
    (True, False)
    """

    root: Path
    package: str
    public: dict[str, str] = field(default_factory=dict)
    _imports: dict[str, frozenset[str]] = field(default_factory=dict, compare=False)
    _files: dict[str, Path | None] = field(default_factory=dict, compare=False)

    def file(self, module: str) -> Path | None:
        """Return the file of a module; None where there is none. A module outside the package must be imported."""
        if not self._inside(module):
            origin = getattr(sys.modules.get(module), "__file__", None) or _origin(module)
            return None if origin is None else Path(origin)
        if module not in self._files:
            self._files[module] = self._locate(module)
        return self._files[module]

    def _locate(self, module: str) -> Path | None:
        place = self.root.joinpath(*module.split(".")[1:])
        files = (place / "__init__.py", place.with_suffix(".py"))
        return next((path for path in files if path.is_file()), None)

    def modules(self) -> list[str]:
        """Return the names of all modules of the package."""
        names = (path.relative_to(self.root).with_suffix("").parts for path in self.root.rglob("*.py"))
        return sorted(".".join([self.package, *parts]).removesuffix(".__init__") for parts in names)

    def closure(self, modules: Iterable[str]) -> frozenset[str]:
        """Return the modules and all modules of the package that they import, directly or not."""
        waiting, closure = list(modules), set[str]()
        while waiting:
            module = waiting.pop()
            if module not in closure and self.file(module) is not None:
                closure.add(module)
                waiting += self.imports(module)
        return frozenset(closure)

    def digest(self, modules: Iterable[str]) -> str:
        """Return a hash of the names and the source files of the modules."""
        digest = hashlib.sha256()
        for module in sorted(modules):
            file = self.file(module)
            if file is not None:
                digest.update(module.encode())
                digest.update(file.read_bytes())
        return digest.hexdigest()

    def imports(self, module: str) -> frozenset[str]:
        """Return the modules of the package that a module imports itself, with their parent packages."""
        if module not in self._imports:
            file = self.file(module)
            assert file is not None
            targets = {target for node in _import_nodes(ast.parse(file.read_bytes())) for target in self._targets(node)}
            self._imports[module] = frozenset(p for target in {module, *targets} for p in self._with_parents(target))
        return self._imports[module]

    def _targets(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        for alias in node.names:
            if base == self.package and alias.name in self.public:
                yield f"{self.package}.{self.public[alias.name]}"
            else:
                yield f"{base}.{alias.name}" if self._is_module(f"{base}.{alias.name}") else base

    def _with_parents(self, module: str) -> list[str]:
        parts = module.split(".")
        names = [".".join(parts[: k + 1]) for k in range(len(parts))]
        return [name for name in names if self._is_module(name)]

    def _is_module(self, name: str) -> bool:
        return self._inside(name) and self.file(name) is not None

    def _inside(self, module: str) -> bool:
        return module == self.package or module.startswith(f"{self.package}.")


def _origin(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


def _import_nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the import statements that run; those for a type checker alone do not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            for other in node.orelse:
                yield from _import_nodes(ast.Module([other], []))
        else:
            yield from _import_nodes(node)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


@cache
def installed_sources() -> Sources:
    """Return the sources of the undertow that is running; each file is parsed once per process."""
    return Sources(Path(undertow.__file__).parent, "undertow", dict(undertow._HOME))
