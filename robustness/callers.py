"""What one caller can do to others of a gRPC server: one that says nothing, one that says little, a flood.

Four servers run as the product starts them: an emulated switch, an agent that serves all users, a softswitch,
and the controller of a cluster whose switches are away. An operator makes one call after the other, first
alone and then while an attacker holds up to 1,024 calls open on 16 connections:

- `silent` calls never send their message;
- `slow` ones send a byte of it twice a second;
- `flood` sends whole requests, as fast as they are answered or refused.

The attacker has a host's certificate, which only an emulated switch serves; `controller-reader` is the
controller attacked with a reader's. At the agent it is another user of the machine. An emulated switch has no
calls for operators: there another host takes the operator's part. Attackers have the lowest priority of
processes, as they would run on another machine.

Reported by server and attack: the 99th percentile of the operator's latency without and during the attack,
their ratio (goal: at most 2), how many of the operator's calls were refused or not answered in time (goal:
none), and how the attacker's calls ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from machine import origin
from machine.errors import EntrainError
from machine.packages import run_module
from machine.patience import patience
from machine.process import Child, launch
from machine.record import Record
from machine.tls import open_channel
from robustness.attackers import Task
from robustness.servers import SERVERS, START_S, Place, Server

ATTACKS = ("silent", "slow", "flood")
GOALS = {"ratio": 2.0, "refused": 0}
ANSWER_S = 5.0
"""Seconds (times `patience`) in which a call of the operator must be answered."""
PAUSE_S = 0.02
"""Seconds between calls of the operator."""
WARM_UP = 20
"""Calls of the operator before the first that is measured."""


@dataclass(frozen=True)
class Measured:
    """An operator's calls: the latencies (s) of those that were answered, and how many were not."""

    latencies_s: tuple[float, ...] = ()
    refused: int = 0

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.latencies_s + other.latencies_s, self.refused + other.refused)

    @property
    def calls(self) -> int:
        """How many calls were made."""
        return len(self.latencies_s) + self.refused

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the latency; NaN if none was answered."""
        return 1e3 * float(np.percentile(self.latencies_s, 99)) if self.latencies_s else float("nan")


class Operator:
    """Calls a server, one call after the other, on one connection."""

    def __init__(self, server: Server, channel: Any) -> None:
        self._server = server
        self._call = channel.unary_unary(server.method)

    def wait(self) -> None:
        """Wait until the server answers. Raises EntrainError."""
        until = time.monotonic() + patience(START_S)
        while time.monotonic() < until:
            with contextlib.suppress(grpc.RpcError):
                self._call(self._server.request, timeout=patience(ANSWER_S))
                return
            time.sleep(0.1)
        raise EntrainError(f"{self._server.address}: no answer within {patience(START_S):g} s")

    def measure(self, calls: int, going_on: Callable[[], bool] = lambda: True) -> Measured:
        """Make so many calls, or fewer if it does not go on."""
        latencies_s: list[float] = []
        made = 0
        while made < calls and going_on():
            began = time.monotonic()
            with contextlib.suppress(grpc.RpcError):
                self._call(self._server.request, timeout=patience(ANSWER_S))
                latencies_s.append(time.monotonic() - began)
            made += 1
            time.sleep(PAUSE_S)
        return Measured(tuple(latencies_s), made - len(latencies_s))


@contextlib.contextmanager
def attacking(place: Place, server: Server, kind: str, seconds: float) -> Iterator[Child]:
    """Within, calls of an attacker are open. It ends by itself, and prints how its calls ended."""
    own = server.attacker
    task = Task(
        kind,
        server.address,
        server.method,
        seconds,
        server.request.hex(),
        str(own.certificate.with_suffix("")) if own is not None else "",
        server.name,
    )
    user = ["setpriv", f"--reuid={server.user}", "--clear-groups"] if server.user is not None else []
    command = [*user, "nice", "-n", "19", *run_module("robustness.attackers"), json.dumps(asdict(task))]
    child = launch(place.record, f"the {kind} caller", command, tells=True)
    try:
        child.wait_ready(patience(START_S))
        yield child
    finally:
        child.end()


def campaign(
    names: Sequence[str], kinds: Sequence[str], calls: int, seconds: float, rounds: int
) -> dict[str, Any]:
    """Attack servers; return what `main` prints."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory, Record("callers") as record:
        Path(directory).chmod(0o755)  # other users call the agent
        place = Place(Path(directory), record)
        for name in names:
            with SERVERS[name](place) as server:
                options = [("grpc.use_local_subchannel_pool", 1)]
                with open_channel(grpc, server.address, options, server.operator, server.name) as channel:
                    operator = Operator(server, channel)
                    operator.wait()
                    operator.measure(WARM_UP)
                    found[name] = {}
                    for kind in kinds:
                        found[name][kind] = _attack(place, server, operator, kind, calls, seconds, rounds)
    return {
        "servers": found,
        "goals": GOALS,
        "origin": asdict(origin.here()),
        "load_average": os.getloadavg()[0],
    }


def _attack(
    place: Place, server: Server, operator: Operator, kind: str, calls: int, seconds: float, rounds: int
) -> dict[str, Any]:
    without, during = Measured(), Measured()
    ended: Counter[str] = Counter()
    for _ in range(rounds):  # other work of the machine disturbs both alike
        without += operator.measure(calls)
        with attacking(place, server, kind, seconds) as attacker:
            during += operator.measure(calls, lambda a=attacker: a.process.poll() is None)  # type: ignore[misc]
            attacker.process.terminate()
            assert attacker.process.stdout is not None
            said = attacker.process.stdout.read()  # until it ends
        if not said:
            raise EntrainError(f"the {kind} caller ended early")
        ended.update(json.loads(said))
    return {
        "latency_ms_p99_without": without.p99_ms,
        "latency_ms_p99_during": during.p99_ms,
        "ratio": during.p99_ms / without.p99_ms,
        "calls": during.calls,
        "refused": without.refused + during.refused,
        "attackers_calls": dict(ended),
    }


def main(argv: Sequence[str]) -> None:
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m robustness callers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--servers", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--calls", type=int, default=100, help="of the operator, each time")
    parser.add_argument("--rounds", type=int, default=3, help="without an attack, and then with it")
    parser.add_argument("--seconds", type=float, default=20.0, help="that an attack lasts at most")
    options = parser.parse_args(argv)
    if os.geteuid() != 0 and "agent" in options.servers:
        raise EntrainError("callers: an agent needs root; leave it out with --servers")
    found = campaign(options.servers, options.attacks, options.calls, options.seconds, options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    for name, attacks in found["servers"].items():
        for kind, each in attacks.items():
            print(
                f"{name:18} {kind:7} p99 {each['latency_ms_p99_without']:8.2f} ms, attacked "
                f"{each['latency_ms_p99_during']:8.2f} ms, ratio {each['ratio']:5.2f}, refused "
                f"{each['refused']} of {each['calls']}",
                file=sys.stdout,
            )
