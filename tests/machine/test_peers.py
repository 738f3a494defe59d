"""Unix sockets of the gRPC servers: who may connect, how often, and that the kernel says who calls."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hostbpf.rpc import calls as rpc
from machine import peers
from machine.errors import BadInput, EntrainError
from tests.permissions import let_others_pass

pytestmark = pytest.mark.sockets

NOBODY = 65534

_WHO = """
import sys, grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    try:
        print(channel.unary_unary("/who/are_you")(b"", timeout=20).decode())
    except grpc.RpcError as error:
        print(error.code().name)
"""


@contextlib.contextmanager
def asking(directory: Path, mode: int) -> Iterator[Callable[[int | None], str]]:
    """Within, a call by a user (None: the present one) tells who has called, or how the call failed."""
    door, server = directory / "door.sock", directory / "server.sock"

    class Who(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: str(peers.user_of(context.peer())).encode()
            )

    def ask(user: int | None) -> str:
        done = subprocess.run(
            [sys.executable, "-c", _WHO, f"unix:{door}"],
            capture_output=True, text=True, check=True, user=user, cwd="/",
        )  # fmt: skip
        return done.stdout.strip()

    def add(server: Any) -> None:
        server.add_generic_rpc_handlers((Who(),))

    let_others_pass(directory)
    with rpc.serving(add, f"unix:{server}", threads=2), peers.admitting(door, mode, server):
        assert stat.S_IMODE(door.stat().st_mode) == mode
        yield ask
    assert not door.exists()


def test_the_kernel_says_who_calls(tmp_path: Path) -> None:
    with asking(tmp_path, 0o600) as ask:
        assert ask(None) == str(os.getuid())


@pytest.mark.root
def test_the_mode_says_who_may_call(tmp_path: Path) -> None:
    with asking(tmp_path, 0o600) as ask:
        assert ask(NOBODY) == "UNAVAILABLE"
    with asking(tmp_path, 0o666) as ask:
        assert ask(NOBODY) == str(NOBODY)
        assert ask(None) == "0"


def test_connections_of_a_user_are_bounded_and_end_with_the_door(tmp_path: Path) -> None:
    door, server = tmp_path / "door.sock", tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(server))
        listener.listen(100)
        ends = []
        with peers.admitting(door, 0o600, server):
            for _ in range(peers.CONNECTIONS_PER_USER + 5):
                end = stack.enter_context(socket.socket(socket.AF_UNIX))
                end.settimeout(20)
                end.connect(str(door))
                ends.append(end)
            *first, refused = ends
            assert refused.recv(1) == b""
            inner = [stack.enter_context(listener.accept()[0]) for _ in range(peers.CONNECTIONS_PER_USER)]
            inner[0].sendall(b"!")
            assert first[0].recv(1) == b"!"
        assert [end.recv(1) for end in ends[: peers.CONNECTIONS_PER_USER]] == [b""] * len(inner)


def test_a_socket_of_a_dead_process_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    door, server = tmp_path / "door.sock", tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(door))
    with (
        peers.admitting(door, 0o600, server),
        pytest.raises(EntrainError, match="another process listens there"),
        peers.admitting(door, 0o600, server),
    ):
        pass
    door.write_text("somebody's")
    with (
        pytest.raises(EntrainError, match=r"door\.sock: Address already in use"),
        peers.admitting(door, 0o600, server),
    ):
        pass
    assert door.read_text() == "somebody's"


def test_an_address_that_cannot_be_is_refused_before_it_is_served() -> None:
    with (
        pytest.raises(BadInput, match="from 0 to 65535"),
        rpc.serving(lambda _: None, "127.0.0.1:99999", threads=1),
    ):
        pass
