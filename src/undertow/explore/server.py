"""The server of the explorer: a page, its script and style, and pictures as JSON, for this machine only."""

import contextlib
import errno
import itertools
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from undertow.explore.instrument import Instrument, SettingError, Value

__all__ = ["Answer", "Explorer", "PortInUseError", "make_server"]

HOST = "127.0.0.1"
FILES = {
    "/": ("explorer.html", "text/html; charset=utf-8"),
    "/explorer.js": ("explorer.js", "text/javascript; charset=utf-8"),
    "/explorer.css": ("explorer.css", "text/css; charset=utf-8"),
}
FOLDER = Path(__file__).parent / "page"
MOST_STORED = 512
"""Pictures that are kept; each has about 10 kB."""
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'"


class PortInUseError(OSError):
    """Another program listens on the port, or this user may not use it."""


class Answer(NamedTuple):
    """A status, a content type and the content."""

    status: HTTPStatus
    kind: str
    body: bytes


class Explorer:
    """The answers of the server. Requests may come from several threads; each picture is computed once."""

    def __init__(self, instruments: Mapping[str, Instrument]):
        self.instruments = dict(instruments)
        self.stored: dict[tuple, bytes] = {}
        self.locks = {name: threading.Lock() for name in instruments}

    def answer(self, target: str) -> Answer:
        """Return the answer to a GET request for a path with its query."""
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query))
        if parts.path in FILES:
            name, kind = FILES[parts.path]
            return Answer(HTTPStatus.OK, kind, (FOLDER / name).read_bytes())
        if parts.path == "/instruments.json":
            return _json(HTTPStatus.OK, [one.describe() for one in self.instruments.values()])
        if parts.path == "/picture.json":
            return self._picture(query)
        return _json(HTTPStatus.NOT_FOUND, {"error": f"There is no page {parts.path}."})

    def _picture(self, query: dict[str, str]) -> Answer:
        instrument = self.instruments.get(query.pop("instrument", ""))
        if instrument is None:
            return _json(HTTPStatus.BAD_REQUEST, {"error": f"The instruments are {', '.join(self.instruments)}."})
        try:
            settings = instrument.parse(query)
        except SettingError as error:
            return _json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        try:
            body = self.picture(instrument, settings)
        except Exception as error:  # runs that all diverge, or code of the user: an answer, and no error of the page
            own = isinstance(error, ValueError | TypeError)
            return _json(HTTPStatus.OK, {"error": str(error) if own else f"{type(error).__name__}: {error}"})
        return Answer(HTTPStatus.OK, "application/json", body)

    def picture(self, instrument: Instrument, settings: Mapping[str, int | float | str]) -> bytes:
        """Return the picture of a setting as JSON, computed or stored."""
        key = (instrument.name, *settings.values())
        with self.locks[instrument.name]:
            if key not in self.stored:
                while len(self.stored) >= MOST_STORED:
                    self.stored.pop(next(iter(self.stored)))
                self.stored[key] = json.dumps(instrument.picture(settings).to_json()).encode()
            return self.stored[key]

    def compile(self, names: Iterable[str]) -> None:
        """Compute one picture for each compiled program: the defaults of all instruments first.

        The page shows the errors of settings that have no picture.
        """
        several = [self.instruments[name] for name in names]
        first = [(instrument, instrument.defaults()) for instrument in several]
        for instrument, settings in itertools.chain(first, *(_programs(instrument) for instrument in several)):
            with contextlib.suppress(Exception):
                self.picture(instrument, settings)


def _programs(instrument: Instrument) -> Iterator[tuple[Instrument, dict[str, Value]]]:
    return ((instrument, settings) for settings in instrument.compiled_settings())


def _json(status: HTTPStatus, value: object) -> Answer:
    return Answer(status, "application/json", json.dumps(value).encode())


class _Handler(BaseHTTPRequestHandler):
    explorer: Explorer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer one request; only pages of this server may ask, so that other sites cannot start computations."""
        name = (self.headers.get("Host") or "").rpartition(":")[0]
        if name in (HOST, "localhost"):
            answer = self.explorer.answer(self.path)
        else:
            answer = _json(HTTPStatus.FORBIDDEN, {"error": "Open the explorer by its address on this machine."})
        self.send_response(answer.status)
        headers = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), "Cache-Control": "no-store"}
        headers |= {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        try:
            self.wfile.write(answer.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page asked for another picture in the meantime

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for each request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # after a restart the port is free at once; on Windows the option lets two servers share a port
    allow_reuse_address = os.name == "posix"


def make_server(explorer: Explorer, port: int) -> ThreadingHTTPServer:
    """Return a server that is bound to a port of this machine; 0 is any free port.

    >>> from undertow.explore.server import Explorer, make_server
    >>> with make_server(Explorer({}), 0) as server:
    ...     print(server.server_address[0])
    127.0.0.1
    """
    handler = type("Handler", (_Handler,), {"explorer": explorer})
    try:
        return _Server((HOST, port), handler)
    except OSError as error:
        used = error.errno == errno.EADDRINUSE
        reason = "another program uses the port" if used else f"the port cannot be used ({error.strerror})"
        raise PortInUseError(f"--port {port}: {reason}. Give another one, or --port 0 for any free port.") from error
