"""Packages of an extra are optional: without one, a sentence gives the command that installs it."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import undertow
from undertow.execution.workers import Cluster, WorkersUnreachableError

SOURCE = Path(undertow.__file__).parent
PROJECT = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]
NAMES = {"scikit-learn": "sklearn"}
BASE = {NAMES.get(name, name) for name in (Requirement(text).name for text in PROJECT["dependencies"])}
FOR_TORCH = {"torch", "safetensors", "threadpoolctl"}
UNGUARDED = {
    ("torch/census/twins.py", "transformers"),  # its argument is a configuration of transformers
    ("execution/sweeps/results.py", "numcodecs"),  # a dependency of zarr
}


def imported(tree: ast.AST) -> set[str]:
    """Return the packages that a piece of code imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def optional_imports(code: str) -> set[str]:
    """Return the optional packages that a module imports without an `except ImportError` for the package."""
    tree, guarded = ast.parse(code), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(h.type) for h in node.handlers if h.type):
            guarded |= imported(ast.Module(node.body, []))
    kept = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return imported(ast.Module(kept, [])) - guarded - BASE - {"undertow"} - set(sys.stdlib_module_names)


def test_a_guard_is_recognised():
    assert optional_imports("import os, jax\nimport torch.nn") == {"torch"}
    assert optional_imports("def f():\n  try:\n    import torch\n  except ImportError:\n    raise") == set()


def test_every_optional_import_is_guarded():
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        names = optional_imports(path.read_text())
        if place.startswith("torch/") or place in (
            "analysis/torch.py",
            "analysis/census.py",
            "analysis/equilibrate.py",
        ):
            names -= FOR_TORCH  # guarded by `undertow.torch` and by the commands
        assert {(place, name) for name in names} <= UNGUARDED


def test_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import undertow; undertow.Problem\n"
        "try:\n    import undertow.torch\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'undertow[torch]'" in done.stdout


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(WorkersUnreachableError, match=r"pip install 'undertow\[cluster\]'"):
        Cluster("tcp://10.0.0.1:8786")
