"""The agent's counters for Prometheus, over HTTP on loopback.

Every process of the machine can connect, and nothing tells who it is. So a connection has little time, and
the oldest one makes room when there are too many.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector

from hostbpf.agent.agent import Agent
from machine.errors import EntrainError
from machine.patience import patience

REQUEST_S = 5.0
"""Seconds (times `patience`) that a connection may last."""
MOST_CONNECTIONS = 64
"""At a time; each takes a thread."""

Answer = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Counters(Collector):
    """An agent's counters."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        """Read them now."""
        counts = self._agent.counts()
        yield GaugeMetricFamily("entrain_flows", "Flows with a schedule.", value=counts.pop("flows"))
        text = "Packets with a slot header, by what became of them."
        yield _events("entrain_carriers", text, counts)
        skews = GaugeMetricFamily(
            "entrain_skew_seconds",
            "Bounds of how much earlier another host's slots begin, by its address.",
            labels=("host", "bound"),
        )
        for peer, offset in self._agent.skews().items():
            for bound, skew_ns in zip(("low", "high"), offset, strict=True):
                skews.add_metric((peer, bound), skew_ns / 1e9)
        yield skews
        iterations = CounterMetricFamily(
            "entrain_mltcp_iterations",
            "Iterations of an MLTCP job, by job and network namespace.",
            labels=("job", "netns"),
        )
        for job, (_, states) in self._agent.jobs().items():
            for key, state in states.items():
                iterations.add_metric((str(job), str(key.netns)), state.iteration)
        yield iterations
        if self._agent.scheduler is not None:
            found = {"decisions": 0, "unanswered": 0, **self._agent.scheduler.status()}
            text = "What the scheduler did, and what progress it refused."
            yield _events("entrain_scheduling", text, found)


def _events(name: str, text: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("event",))
    for event, count in counts.items():
        family.add_metric((event,), count)
    return family


@contextlib.contextmanager
def serving(collector: Collector, port: int) -> Iterator[int]:
    """Within, what is collected can be read at loopback's `port`; yields the port (0 takes a free one).

    Raises EntrainError for a port that is taken.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server = _Server(("127.0.0.1", port), _Handler)
    except OSError as error:
        raise EntrainError(f"metrics port {port}: {error.strerror}") from error
    own = int(server.server_address[1])
    server.set_app(_for_own_readers(make_wsgi_app(registry), own))
    thread = threading.Thread(target=server.serve_forever, name="metrics")
    thread.start()
    try:
        yield own
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _for_own_readers(app: Answer, port: int) -> Answer:
    """Refuse requests under another host's name: a page of that host in a browser here would make them."""
    names = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_HOST") in names:
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"the Host header must be {' or '.join(sorted(names))}\n".encode()]

    return answer


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


class _Server(ThreadingWSGIServer):
    """Ends connections that take too long, and the oldest where there are too many."""

    def __init__(self, *arguments: Any) -> None:
        self._until: dict[socket.socket, float] = {}  # of open connections, the oldest first
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread."""
        with self._lock:
            if len(self._until) >= MOST_CONNECTIONS:
                self._end(next(iter(self._until)))
            self._until[request] = time.monotonic() + patience(REQUEST_S)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End what takes too long. The server calls this after each connection, and twice a second."""
        now = time.monotonic()
        with self._lock:
            for request in [each for each, until in self._until.items() if until <= now]:
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        del self._until[request]
        with contextlib.suppress(OSError):  # it has just ended by itself
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has been answered."""
        with self._lock:
            self._until.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers that go away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
