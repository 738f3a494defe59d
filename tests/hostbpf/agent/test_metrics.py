"""The agent's metrics port: what it serves, to whom, and that silent connections keep nobody out."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostbpf.agent import metrics
from machine.patience import patience


class One(Collector):
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("entrain_one", "One.", value=1)


def read(port: int, **headers: str) -> tuple[int, str]:
    """The status and text of a scrape."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience(60))
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def half(port: int) -> socket.socket:
    """A connection on which a request has begun."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=patience(60))
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
    return connection


def ended(connection: socket.socket) -> bool:
    """Whether the server ends the connection within a minute."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_a_scrape_under_another_hosts_name_is_refused() -> None:
    with metrics.serving(One(), 0) as port:
        for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
            assert read(port, Host=host)[0] == 200
        assert "entrain_one 1.0" in read(port)[1]
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", ""):
            assert read(port, Host=host)[0] == 403


def test_connections_beyond_the_limit_end_the_oldest_and_scrapes_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "REQUEST_S", 1e4)
    with metrics.serving(One(), 0) as port, contextlib.ExitStack() as stack:
        held = [stack.enter_context(half(port)) for _ in range(3 * metrics.MOST_CONNECTIONS)]
        assert read(port)[0] == 200
        beyond = len(held) - metrics.MOST_CONNECTIONS + 1
        assert all(ended(each) for each in held[:beyond])
        held[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            held[-1].recv(1)


def test_a_connection_that_says_little_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_S", 0.01)
    with metrics.serving(One(), 0) as port, half(port) as connection:
        assert ended(connection)
