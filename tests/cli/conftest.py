"""A verified claim, shared by the tests of several commands."""

import subprocess
import sys

import pytest

from tests.cli.calls import FAST


@pytest.fixture(scope="session")
def verified(tmp_path_factory):
    """A folder with the verdict on one claim, by the real program in a process of its own."""
    out = tmp_path_factory.mktemp("verify")
    command = [
        sys.executable,
        "-m",
        "undertow.cli",
        "verify",
        FAST,
        "--scale",
        "smoke",
        "--jobs",
        "1",
        "--out",
        str(out),
    ]
    code = "import sys; from undertow.cli import main; sys.argv[0] = 'undertow'; main()"
    command[1:3] = ["-c", code]
    finished = subprocess.run(command, capture_output=True, text=True)
    return out, finished
