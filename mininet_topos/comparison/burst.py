"""`python -m mininet_topos.comparison.burst`: senders that start together, and a receiver that times each.

    burst sink PORT SENDERS BYTES     prints, as JSON, when each round of each sender was whole
    burst source CONTROL IP PORT BYTES ROUNDS FIRST_S PERIOD_S

Times are in seconds on the machine's monotonic clock.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

_CHUNK = 1 << 16


def sink(port: int, senders: int, size: int) -> list[list[float]]:
    """Accept `senders` connections, and return for each when all of every `size` bytes had arrived."""
    with socket.create_server(("", port), backlog=senders) as server:
        print("ready", file=sys.stderr, flush=True)
        times: list[list[float]] = [[] for _ in range(senders)]
        threads = []
        for each in times:
            threads.append(threading.Thread(target=_receive, args=(server.accept()[0], size, each)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return times


def _receive(connection: socket.socket, size: int, times: list[float]) -> None:
    received = 0
    with connection:
        while data := connection.recv(_CHUNK):
            received += len(data)
            if received >= (len(times) + 1) * size:
                times.append(time.monotonic())


def source(control: str, ip: str, port: int, size: int, rounds: int, first_s: float, period_s: float) -> None:
    """Connect with a congestion control, and send `size` bytes at `first_s`, then each `period_s`."""
    data = bytes(size)
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        connection.connect((ip, port))
        for number in range(rounds):
            time.sleep(max(0.0, first_s + number * period_s - time.monotonic()))
            connection.sendall(data)


def main(argv: list[str]) -> None:
    """Run as sink or source."""
    if argv[0] == "sink":
        print(json.dumps(sink(*map(int, argv[1:]))))
    else:
        control, ip, port, size, rounds, first_s, period_s = argv[1:]
        source(control, ip, int(port), int(size), int(rounds), float(first_s), float(period_s))


if __name__ == "__main__":
    main(sys.argv[1:])
