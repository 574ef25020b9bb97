"""The server: its answers, its errors as sentences, other hosts, a port in use, pictures computed once."""

import errno
import http.client
import json
import threading
from http import HTTPStatus

import numpy as np
import pytest

from undertow.explore.instrument import Instrument, SettingError, Slider
from undertow.explore.picture import Axis, Panel, Picture, Series
from undertow.explore.server import Explorer, PortInUseError, make_server

CALLS: list[float] = []


def compute(settings):
    CALLS.append(settings["height"])
    if settings["height"] == 3:
        raise SettingError("All runs diverged: choose a smaller step size.")
    if settings["height"] == 4:
        raise RuntimeError("code of the user")
    return float(settings["height"])


def draw(height):
    line = Series("line", "height", "red", np.array([0.0, 1.0]), np.full(2, height))
    return Picture((Panel("Height", Axis("x"), Axis("y"), (line,)),), ())


FLAT = Instrument(
    "flat", "Flat", "A line.", "theory/zero-loss", (Slider("height", "height", (1, 2, 3, 4), 1, programs=(3, 2)),),
    compute, draw, "height = $height",
)  # fmt: skip


@pytest.fixture
def explorer():
    CALLS.clear()
    return Explorer({"flat": FLAT})


@pytest.fixture
def server(explorer):
    with make_server(explorer, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, path, **headers):
    connection = http.client.HTTPConnection(*server.server_address, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_and_its_files(server):
    for path, kind in (("/", "text/html"), ("/?instrument=flat", "text/html"), ("/explorer.js", "text/javascript"),
                       ("/explorer.css", "text/css"), ("/instruments.json", "application/json")):  # fmt: skip
        answer, body = get(server, path)
        assert answer.status == HTTPStatus.OK
        assert answer.headers["Content-Type"].startswith(kind)
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert body


def test_a_picture_is_computed_once(server):
    for _ in range(2):
        answer, body = get(server, "/picture.json?instrument=flat&height=2")
        assert answer.status == HTTPStatus.OK
        assert json.loads(body)["panels"][0]["series"][0]["y"] == [2, 2]
    assert CALLS == [2]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/picture.json?instrument=round", "The instruments are flat."),
        ("/picture.json?instrument=flat&height=7", "height=7: the slider has the values 1, 2, 3, 4."),
        ("/picture.json?instrument=flat&width=7", "width is not a slider of flat, which has height."),
        ("/picture.json?instrument=flat&height=3", "All runs diverged: choose a smaller step size."),
        ("/picture.json?instrument=flat&height=4", "RuntimeError: code of the user"),
        ("/../server.py", "There is no page /../server.py."),
    ],
)
def test_mistakes_are_sentences(server, path, message):
    answer, body = get(server, path)
    wanted = (
        HTTPStatus.OK
        if "diverged" in message or "user" in message
        else HTTPStatus.NOT_FOUND
        if "page" in message
        else 400
    )
    assert answer.status == wanted
    assert json.loads(body) == {"error": message}


def test_other_sites_cannot_use_the_server(server):
    answer, _ = get(server, "/picture.json?instrument=flat", Host="example.org:80")
    assert answer.status == HTTPStatus.FORBIDDEN
    assert CALLS == []


def test_a_port_in_use_is_a_sentence(server, explorer):
    with pytest.raises(PortInUseError, match=r"another program uses the port\. Give another one, or --port 0"):
        make_server(explorer, server.server_address[1])


def test_a_port_that_this_user_may_not_use(explorer, monkeypatch):
    def refuse(address, handler):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("undertow.explore.server._Server", refuse)
    with pytest.raises(
        PortInUseError, match=r"--port 80: the port cannot be used \(Permission denied\)\. Give another"
    ):
        make_server(explorer, 80)


def test_every_program_is_compiled_once_also_after_one_that_has_no_picture(explorer):
    explorer.compile(["flat"])
    assert CALLS == [1, 3, 2]
