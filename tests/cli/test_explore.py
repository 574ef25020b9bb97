"""`undertow explore`: mistakes are sentences. tests/explore/test_explorer_in_chromium.py starts the command."""

import socket

import pytest

from tests.cli.calls import call
from undertow.cli._status import MISTAKE
from undertow.explore.own import EXAMPLE


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


def test_a_problem_that_diverges_at_the_defaults_still_has_a_page(capsys, tmp_path, monkeypatch):
    """Its sliders have smaller step sizes."""
    steep = EXAMPLE.replace("* x, x, x)", "* 30 * x, x, x)")
    (tmp_path / "steep.py").write_text(steep)
    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", lambda server: None)
    monkeypatch.setattr("undertow.explore.server.Explorer.compile", lambda explorer, names: None)
    status, out, err = call(
        capsys, "explore", "--no-browser", "--port", 0, "--file", f"{tmp_path / 'steep.py'}:problem"
    )
    assert (status, err) == (0, "")
    assert "All runs diverged: choose a smaller step size." in out
    assert "http://127.0.0.1:" in out
