"""Serves what there is to watch over HTTP: a page, its data, and metrics for Prometheus."""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from entrain.watch.metrics import exposition
from entrain.watch.source import Ended, Latest, Source
from machine.errors import BadInput, EntrainError
from machine.palette import JOBS
from machine.signals import ending_once

_PAGE = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/watch.css": ("watch.css", "text/css; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_WAIT_S = 10.0
"""How long a reader waits for the next snapshot; then it gets the same one again."""
_LAST_S = 2.0
"""How long readers are answered after the end: those who were drawing ask again, and are told."""
_PHASES = 60
"""How many of a job's latest iterations the page gets."""


class Server(ThreadingHTTPServer):
    """Serves a source. `url` is where, with the token if readers must show one.

    Readers on other machines must show a token. Without `page` there are only metrics. Raises BadInput for
    an address that cannot be, EntrainError if it is taken.
    """

    daemon_threads = True

    def __init__(self, latest: Latest, listen: str, token: str | None = None, *, page: bool = True) -> None:
        host, port = _address(listen)
        self.loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        self.token = token or (None if self.loopback else secrets.token_urlsafe(18))
        self.page = page
        self.latest = latest
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            remedy = "; choose another port with --listen" if error.errno == 98 else ""
            raise EntrainError(f"--listen {listen}: {error.strerror}{remedy}") from error
        shown = f"[{host}]" if ":" in host else host
        query = f"?token={self.token}" if self.token else ""
        self.url = f"http://{shown}:{self.server_address[1]}/{'' if page else 'metrics'}{query}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers that go away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def names(self) -> set[str]:
        """Return the Host headers under which loopback readers call, so that other sites' pages cannot."""
        port = self.server_address[1]
        return {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = parse_qs(asked.query)
        if self.server.loopback and self.headers.get("Host") not in self.server.names():
            self._answer(403, {"error": "call this server by its address"})
        elif asked.path == "/metrics":
            if self._admitted(query):
                self._metrics()
        elif self.server.page and asked.path in _FILES:
            name, kind = _FILES[asked.path]
            self._send(200, (_PAGE / name).read_bytes(), kind)
        elif self.server.page and asked.path == "/api/snapshot":
            if self._admitted(query):
                self._snapshot(query)
        else:
            self._answer(404, {"error": "there is no such page"})

    def _admitted(self, query: dict[str, list[str]]) -> bool:
        given = query.get("token", [""])[0] or self.headers.get("Authorization", "").removeprefix("Bearer ")
        token = self.server.token
        if token is None or hmac.compare_digest(given.encode(), token.encode()):
            return True
        self._answer(403, {"error": "open the address that `entrain watch` has printed, with its token"})
        return False

    def _snapshot(self, query: dict[str, list[str]]) -> None:
        try:
            after = int(query.get("after", ["0"])[0])
        except ValueError:
            self._answer(400, {"error": "after: must be a number"})
            return
        try:
            number, snapshot = self.server.latest.wait(after, _WAIT_S)
        except EntrainError as error:
            self._answer(200, {"ended": str(error)})
            return
        document = snapshot.document()
        for job in document["jobs"]:
            job["phases"] = job["phases"][-_PHASES:]
        if after and number == after + 1:  # the reader has what was before
            del document["history"]
        self._answer(200, {"number": number, "colours": JOBS, "snapshot": document})

    def _metrics(self) -> None:
        try:
            _, snapshot = self.server.latest.wait(0, _WAIT_S)
        except EntrainError as error:
            self._answer(503, {"error": str(error)})
            return
        body, kind = exposition(snapshot)
        self._send(200, body, kind)

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def serve(source: Source, listen: str, token: str | None, tell: Any, *, page: bool = True) -> None:
    """Serve `source` until a signal, or until its network ends: then readers are told, and Ended is raised.

    `tell` is called with the address.
    """
    latest = Latest(source)
    latest.wait()  # an error is told before anybody is invited
    with ending_once(), Server(latest, listen, token, page=page) as server:
        thread = threading.Thread(target=server.serve_forever, name="web", daemon=True)
        thread.start()
        tell(server.url)
        number = 0
        try:
            while True:
                number, _ = latest.wait(number, 1.0)
        except Ended:
            time.sleep(_LAST_S)
            raise
        finally:
            server.shutdown()
            thread.join()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        if host != "localhost":
            ipaddress.ip_address(host)
        if not 0 <= int(port) < 65536:
            raise ValueError
    except ValueError:
        raise BadInput(
            f"--listen {listen}: give an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080"
        ) from None
    return host, int(port)
