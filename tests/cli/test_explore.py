"""`undertow explore`: mistakes are sentences. tests/explore/test_explorer_in_chromium.py starts the command."""

import socket

import pytest

from tests.cli.calls import call
from undertow.cli._status import MISTAKE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "70000"), "--port 70000: give a number from 0 to 65535."),
        (("--instrument", "engine"), "--instrument engine: the instruments are label-noise, "),
        (("--file", "missing.py:problem"), "missing.py: there is no such file."),
        (("--file", "missing.py"), "missing.py: name an object of the file as well, such as missing.py:problem."),
    ],
)
def test_mistakes_are_sentences(capsys, arguments, message):
    status, out, err = call(capsys, "explore", "--no-browser", *arguments)
    assert status == MISTAKE
    assert f"undertow: {message}" in err
    assert out == ""


def test_a_port_in_use(capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, _, err = call(capsys, "explore", "--no-browser", "--port", port)
    assert status == MISTAKE
    assert f"--port {port}: another program uses the port. Give another one, or --port 0 for any free port." in err
