"""The import closure of a module, and the fingerprints of claims over it."""

import importlib
import shutil
from pathlib import Path

import pytest

import undertow
from undertow.execution import provenance, sources
from undertow.execution.sources import Sources, installed_sources
from undertow.verification import claims, runner


@pytest.fixture
def package(tmp_path):
    """A small package with a lazy import, an import for type checkers, and a module that nothing imports."""
    files = {
        "__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from small.unrelated import f\n",
        "a.py": "import math\nfrom small.part import b\n\ndef late():\n    from small.part.c import x\n",
        "part/__init__.py": "",
        "part/b.py": "from small import public_name\n",
        "part/c.py": "x = 1\n",
        "home.py": "import small.part.d as d\n",
        "part/d.py": "",
        "unrelated.py": "f = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return Sources(tmp_path, "small", {"public_name": "home"})


def test_the_closure_follows_the_imports_that_run(package):
    everything = {"small", "small.a", "small.part", "small.part.b", "small.part.c", "small.home", "small.part.d"}
    assert package.closure(["small.a"]) == everything
    assert package.closure(["small.part.c"]) == {"small", "small.part", "small.part.c"}
    assert set(package.modules()) == everything | {"small.unrelated"}


def test_a_module_outside_the_package_counts_with_what_it_imports(package, tmp_path, monkeypatch):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "own_claims.py").write_text("from small.part import c\n")
    monkeypatch.syspath_prepend(tmp_path / "outside")
    assert package.closure(["own_claims"]) == {"own_claims", "small", "small.part", "small.part.c"}


def test_a_module_outside_the_package_that_is_written_later_counts(package, tmp_path, monkeypatch):
    (tmp_path / "outside").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "outside")
    assert package.closure(["written_later"]) == set()
    (tmp_path / "outside" / "written_later.py").write_text("from small.part import c\n")
    importlib.invalidate_caches()
    assert package.closure(["written_later"]) == {"written_later", "small", "small.part", "small.part.c"}


def test_the_digest_changes_with_the_files_of_the_modules_alone(package):
    modules = package.closure(["small.a"])
    before = package.digest(modules)
    (package.root / "unrelated.py").write_text("f = 2\n")
    assert package.digest(modules) == before
    (package.root / "part" / "c.py").write_text("x = 2\n")
    assert package.digest(modules) != before


def test_no_claim_depends_on_the_bridge_the_command_line_or_the_report():
    unrelated = ("undertow.torch", "undertow.cli", "undertow.analysis", "undertow.verification.report")
    for claim in claims.values():
        closure = installed_sources().closure([claim.module, runner.run_claim.__module__])
        assert claim.module in closure
        assert "undertow.verification.criterion" in closure
        assert not [module for module in closure if module.startswith(unrelated)], claim.id
        others = {other.module for other in claims.values()} - {claim.module}
        assert len(others & closure) <= len(others) / 4, claim.id


def test_claims_run_again_only_when_a_module_that_they_import_changes(tmp_path, monkeypatch):
    """Edits of a copy of the package: a comment in the bridge changes no fingerprint, one in the noise does."""
    copy = tmp_path / "undertow"
    shutil.copytree(Path(undertow.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    names = ("sensing-factor-two", "label-noise-covariance")

    def fingerprints() -> list[str]:
        copied = Sources(copy, "undertow", dict(undertow._HOME))
        monkeypatch.setattr(provenance, "installed_sources", lambda: copied)
        provenance._source.cache_clear()
        return [runner.task_of(name, "smoke", claims[name].parameters("smoke"), 0).fingerprint for name in names]

    def edit(module: str) -> None:
        with open(copy / module, "a") as file:
            file.write("# a comment\n")

    try:
        before = fingerprints()
        edit("torch/data.py")
        edit("cli/verify.py")
        assert fingerprints() == before
        edit("noise/label.py")
        after = fingerprints()
        assert after[1] != before[1]
        edit("verification/criterion.py")
        assert all(new != old for new, old in zip(fingerprints(), after, strict=True))
    finally:
        provenance._source.cache_clear()


def test_the_sources_of_the_running_package_are_read_once():
    assert sources.installed_sources() is sources.installed_sources()
