"""CONTRIBUTING.md names files that exist, and the hooks and the hosted workflow run the checks it lists."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.docs


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/howto/own-claim.md", "docs/architecture.md"])
def test_every_path_that_is_named_exists(page):
    paths = re.findall(r"`((?:src|tests|docs|examples|\.ci)/[\w./]+)`", (ROOT / page).read_text())
    assert paths
    for path in paths:
        assert path.count("PAPER") or (ROOT / path).exists(), path


def test_the_hosted_workflow_runs_the_same_commands_as_the_gate():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    job = workflow["jobs"]["test"]
    assert job["strategy"]["matrix"]["python-version"] == ["3.11", "3.12", "3.13"]
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    (python,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert python["with"]["cache"] == "pip"
    for file in python["with"]["cache-dependency-path"].split():
        assert list(ROOT.glob(file)), file


def test_hooks_use_the_environment_of_the_project():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    commands = [hook["entry"] for hook in local["hooks"]]
    assert [command.split()[:2] for command in commands] == [
        [".venv/bin/ruff", "check"],
        [".venv/bin/ruff", "format"],
        [".venv/bin/ty", "check"],
    ]
