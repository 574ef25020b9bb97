"""The wheel, the source distribution, the versions in all files, the extras, the conda recipe and the workflows."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import undertow

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONDA_NAMES = {"matplotlib": "matplotlib-base"}


def build(source, out, *targets):
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *targets]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    return out


@pytest.fixture(scope="module")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_has_the_package_and_nothing_else(dist, wheel):
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    assert shipped == {
        path.relative_to(source).as_posix()
        for path in (source / "undertow").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert next(dist.glob("*.whl")).stat().st_size < 3e6


def test_the_source_distribution_builds_the_same_wheel(dist, wheel, tmp_path):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    build(tree, tmp_path / "dist", "-t", "wheel")
    (rebuilt,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(rebuilt) as archive:
        assert {info.filename: info.CRC for info in archive.infolist()} == {
            info.filename: info.CRC for info in wheel.infolist()
        }
    needed = [
        "Makefile",
        "conftest.py",
        "constraints.txt",
        "examples",
        "requirements",
        "tests",
        ".ci/run",
        "mkdocs.yml",
    ]
    assert [name for name in needed if not (tree / name).exists()] == []
    assert not list(tree.rglob("__pycache__"))
    assert not (tree / ".venv").exists()


def test_the_long_description_is_the_readme(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    metadata = message_from_string(wheel.read(name).decode())
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Version"] == undertow.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"torch", "cluster", "explore"} <= set(metadata.get_all("Provides-Extra"))
    needs = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    extra = lambda wanted: {
        need.name for need in needs if need.marker and need.marker.evaluate({"extra": wanted})
    }  # fmt: skip
    assert extra("torch") == {"torch", "safetensors", "threadpoolctl"}
    assert extra("cluster") == {"distributed"}
    assert extra("explore") == set()
    base = {need.name for need in needs if need.marker is None}
    assert {"jax", "scikit-learn"} <= base
    assert not base & {"torch", "distributed", "transformers", "optax"}


def test_all_files_state_the_same_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    versions = re.findall(
        r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert versions[0] == (undertow.__version__, str(citation["date-released"]))
    assert citation["version"] == RECIPE["context"]["version"] == undertow.__version__
    assert citation["license"] == PROJECT["license"] == RECIPE["about"]["license"]


def test_the_project_urls_are_the_papers_of_the_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert set(PROJECT["urls"].values()) == {paper["url"] for paper in citation["references"]}


def test_the_conda_recipe_has_the_dependencies_of_the_package():
    python, *run = RECIPE["requirements"]["run"]
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    assert run == [f"{CONDA_NAMES.get(need.name, need.name)} {need.specifier}" for need in wanted]
    assert python == "python >=${{ python_min }}"
    assert PROJECT["requires-python"] == f">={RECIPE['context']['python_min']}"
    name, target = next(iter(PROJECT["scripts"].items()))
    assert RECIPE["build"]["python"]["entry_points"] == [f"{name} = {target}"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]


def test_the_pythons_that_are_stated_are_the_pythons_that_are_tested():
    stated = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]["strategy"]
    assert stated == matrix["matrix"]["python-version"]
    assert PROJECT["requires-python"] == f">={stated[0]}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_may_only_read(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})
        for step in job["steps"]:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step.get("uses", "a/b@" + "0" * 40)), step


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    internal = {"lint", "types", "browser"}  # parts of other commands
    assert {line.split()[0] for line in shown.splitlines()} == set(phony.split()) - internal
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in phony.split())
