"""The page, its data and the metrics over HTTP; and the page itself in a browser where one is installed."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.client import RunningNetwork
from entrain.watch.source import Latest, Source
from entrain.watch.web import Server
from machine.errors import BadInput, EntrainError
from tests.browser import browsed, needs_browser
from tests.entrain.watch.network import JOB, Controller

Watched = tuple[RunningNetwork, Controller]
pytestmark = pytest.mark.sockets


ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def serving(
    network: RunningNetwork, listen: str = "127.0.0.1:0", token: str | None = None, *, page: bool = True
) -> Iterator[Server]:
    with Server(Latest(Source(network, 200)), listen, token, page=page) as server:
        server.latest.wait(2, 60)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: Server, path: str, **headers: str) -> tuple[int, str, Any]:
    """Return status, body and headers."""
    url = f"http://127.0.0.1:{server.server_address[1]}{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_the_page_loads_nothing_from_elsewhere_and_no_markup_is_made_of_names(watched: Watched) -> None:
    with serving(watched[0]) as server:
        status, page, headers = get(server, "/")
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        script = get(server, "/watch.js")[1]
        for text in (page, script, get(server, "/watch.css")[1]):
            urls = set(re.findall(r"https?://[^\s\"']+", text))
            assert urls <= {"http://www.w3.org/2000/svg"}, "a name of the format, which nobody loads"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
        assert get(server, "/../web.py")[0] == 404


def test_the_data_has_history_once_and_then_only_what_is_new(watched: Watched) -> None:
    with serving(watched[0]) as server:
        first = json.loads(get(server, "/api/snapshot?after=0")[1])
        assert len(first["snapshot"]["history"]) == 16
        then = json.loads(get(server, f"/api/snapshot?after={first['number']}")[1])
        assert then["number"] > first["number"]
        assert ("history" in then["snapshot"]) == (then["number"] > first["number"] + 1)
        assert then["snapshot"]["jobs"][0]["over_ideal"] == pytest.approx(1.25)
        assert get(server, "/api/snapshot?after=x")[0] == 400


def test_a_name_of_another_site_is_refused_on_loopback(watched: Watched) -> None:
    """A page of another site could make its name lead here."""
    with serving(watched[0]) as server:
        assert get(server, "/api/snapshot", Host="evil.example")[0] == 403


def test_beyond_loopback_a_token_is_required(watched: Watched) -> None:
    with serving(watched[0], "0.0.0.0:0") as server:
        assert server.token is not None and server.token in server.url, "made, as none was given"
        for path in ("/api/snapshot", "/metrics", "/api/snapshot?token=wrong"):
            assert get(server, path)[0] == 403
        assert get(server, f"/api/snapshot?token={server.token}")[0] == 200
        assert get(server, "/metrics", Authorization=f"Bearer {server.token}")[0] == 200


def test_a_wrong_or_taken_address_is_told(watched: Watched) -> None:
    with serving(watched[0]) as server:
        taken = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(EntrainError, match="choose another port with --listen"):
            Server(server.latest, taken)
        for wrong in ("8080", "example.org:80", "127.0.0.1:99999"):
            with pytest.raises(BadInput, match="give an IP address and a port"):
                Server(server.latest, wrong)


def test_readers_are_told_that_the_run_has_ended(watched: Watched) -> None:
    network, controller = watched
    with serving(network) as server:
        controller.ended.set()
        with pytest.raises(EntrainError):
            while True:
                server.latest.wait(10**9, 60)
        assert "its run is over" in json.loads(get(server, "/api/snapshot?after=0")[1])["ended"]
        assert get(server, "/metrics")[0] == 503


def test_without_the_page_there_are_metrics_alone(watched: Watched) -> None:
    with serving(watched[0], page=False) as server:
        assert get(server, "/")[0] == 404
        assert get(server, "/metrics")[0] == 200


@needs_browser
def test_the_page_in_a_browser(watched: Watched, tmp_path: Path) -> None:
    with serving(watched[0]) as server:
        page = browsed(f"{server.url}?readings=2", tmp_path)
    assert "run demo" in page and "leaf1-&gt;spine1" in page
    assert page.count("<svg") == 4, "topology, heat map, use over time, phases"
    assert JOB.replace("<", "&lt;").replace(">", "&gt;") in page
    assert "<b>" not in page and "<img" not in page, "markup in names stays text"
    assert "40.0 of 100 Mbit/s" in page and "60.0 planned" in page
