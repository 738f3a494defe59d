"""A session of p4runtime-shell whose exit status says whether the switch accepted all writes.

    python p4shell_session.py ADDRESS DEVICE_ID read|write [AUTHORITY CERTIFICATE KEY]

It runs in p4runtime-shell's own environment, so it imports nothing from entrain.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc  # type: ignore[import-not-found, unused-ignore]
from p4runtime_sh import p4runtime, shell  # type: ignore[import-not-found, unused-ignore]

TIMEOUT_S = 10.0
"""How long to wait for the switch's answer to the arbitration."""

refused: list[str] = []
"""The reasons for which the switch refused writes."""


def open_channel(address: str, *files: str) -> Any:
    """Return a channel to the switch: over TLS with the files of authority, certificate and key."""
    if not files:
        return grpc.insecure_channel(address)
    authority, certificate, key = (Path(file).read_bytes() for file in files)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate))


def ask_generation(address: str, device_id: int, *files: str) -> int:
    """Return the high half of the highest election id that the switch has seen.

    entrain's controllers increment it; their low half is the process id.
    """

    def bids() -> Iterator[Any]:
        bid = p4runtime_pb2.StreamMessageRequest()
        bid.arbitration.device_id = device_id
        bid.arbitration.election_id.low = os.getpid()
        yield bid

    with open_channel(address, *files) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        for answer in stub.StreamChannel(bids(), timeout=TIMEOUT_S, wait_for_ready=True):
            if answer.HasField("arbitration"):
                return int(answer.arbitration.election_id.high)
    return 0


def noting_refusals(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `method` of the client so that `refused` records its errors."""

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except p4runtime.P4RuntimeWriteException as error:
            refused.append(str(error).strip())
            raise
        except grpc.RpcError as error:
            refused.append(f"{error.code().name}: {error.details()}")
            raise

    return wrapped


def insisting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the client's `get_stream_packet`: end the session if the switch does not make us primary."""

    @functools.wraps(method)
    def wrapped(client: Any, kind: str, timeout: float = 1) -> Any:
        message = method(client, kind, timeout)
        if kind == "arbitration" and message is not None and message.arbitration.status.code:
            election_id = message.arbitration.election_id
            end(
                f"the switch did not make this shell primary: election id {election_id.high}:"
                f"{election_id.low} is primary (process {election_id.low}, if it is entrain's): "
                f"{message.arbitration.status.message}"
            )
        return message

    return wrapped


def naming_absence(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the client's `get_p4info`: say that there is none, so that the shell knows no tables."""

    @functools.wraps(method)
    def wrapped(client: Any) -> Any:
        p4info = method(client)
        if not p4info.ByteSize():
            print(
                "entrain shell: the switch has no P4Info, so no table is known here. A program from its "
                "command line has none; docs/softswitch-programs.md sets both",
                file=sys.stderr,
                flush=True,
            )
        return p4info

    return wrapped


def end(problem: str) -> NoReturn:
    """Print `problem` and exit at once: the client's threads would keep the process alive."""
    sys.stdout.flush()
    print(f"entrain shell: {problem}", file=sys.stderr, flush=True)
    os._exit(1)


def main(address: str, device_id: str, access: str, *files: str) -> None:
    """Run the session. p4runtime-shell reads its commands from the terminal or standard input."""
    high, low = 0, 1
    client = p4runtime.P4RuntimeClient
    try:
        if access == "write":
            high, low = (
                max(ask_generation(address, int(device_id), *files) + 1, int(time.time())),
                os.getpid(),
            )
            client.get_stream_packet = insisting(client.get_stream_packet)
    except grpc.RpcError as error:
        end(f"{address}: {error.details()}")
    client.get_p4info = naming_absence(client.get_p4info)
    for name in ("write", "write_update"):
        setattr(client, name, noting_refusals(getattr(client, name)))
    sys.argv = ["p4runtime_sh", "--grpc-addr", address, "--device-id", device_id]
    sys.argv += ["--election-id", f"{high},{low}"]
    if files:
        sys.argv += ["--ssl"]
        authority, certificate, key = files
        sys.argv += ["--cacert", authority, "--cert", certificate, "--private-key", key]
    shell.main()
    if refused:
        end(f"the switch refused {len(refused)} writes, the last one: {refused[-1]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
