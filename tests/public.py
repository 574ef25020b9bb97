"""The public names of undertow: those of the reference and those that its packages export."""

import ast
import doctest
import importlib
from pathlib import Path

import undertow as ut
from docs.reference import PAGES, names

PACKAGES = ("covariance", "noise", "optimisers", "symmetry/generators", "torch", "verification")
"""Packages whose `__all__` users import from, besides undertow itself."""
VALUES = {"undertow.symmetry.generators.Pair", "undertow.verification.claims"}
"""Public names that are neither classes nor functions, and have no docstring of their own."""


def exported(package: str) -> list[str]:
    """Return `__all__` of a package, read without importing it, because PyTorch may not be installed."""
    tree = ast.parse((Path(ut.__file__).parent / package / "__init__.py").read_text())
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return ast.literal_eval(assigned["__all__"])


def needs_torch(path: str) -> bool:
    return "torch" in path.split(".")


def public_paths() -> list[str]:
    """Return the path of every public class and function."""
    paths = {path for page in PAGES.values() for _, path in names(page)}
    paths |= {f"undertow.{package.replace('/', '.')}.{name}" for package in PACKAGES for name in exported(package)}
    return sorted(paths - VALUES)


def assert_has_example(path: str) -> None:
    """Raise where the docstring of a class or function has no example; those of its methods do not count."""
    module, name = path.rsplit(".", 1)
    thing = getattr(importlib.import_module(module), name)
    assert thing.__doc__, f"{path} has no docstring"
    examples = doctest.DocTestFinder(recurse=False).find(thing, name)
    assert any(test.examples for test in examples), f"the docstring of {path} shows no example"
