"""The built site, shared by the tests of its pages."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NEEDED = {"nbclient": "test_notebooks.py", "griffe": "test_entries.py"}
collect_ignore = [file for package, file in NEEDED.items() if not importlib.util.find_spec(package)]  # the extra `docs`


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Return the folder of the site, built with warnings as errors."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return out
