"""Who is at the other end of a gRPC connection: certificates of one authority, on both ends.

`entrain certs` makes them. gRPC is imported when it is needed: few processes of entrain use certificates.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine.errors import BadInput
from machine.limits import allow_many_files
from machine.patience import patience

AUTHORITY = "ca.crt"
"""The authority's certificate, in a directory of certificates."""
OPERATOR = "entrain:operator"
"""The subject alternative name of those who may write to switches."""
SUBMITTER = "entrain:submitter:"
"""With a name behind it, the subject alternative name of one who may submit jobs, and cancel his own."""
READER = "entrain:reader"
"""The subject alternative name of those who may see everything, and change nothing."""
CONTROLLER = "controller"
"""The controller's name in its certificate, and its file name."""
OPERATORS = "operator"
"""The file name, without suffix, of the operator's certificate and key."""

MOST_CONNECTIONS = 4096
"""Of a server at a time; more are closed at once."""

SERVER_OPTIONS = (
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),  # `open_channel` lets clients ping
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)
"""Options of gRPC's servers: who connects and does not prove who he is does not stay, all connections
together take a bounded part of memory, and a client behind a link that is cut does not keep its places."""

KEEPALIVE_S = 5.0
"""After so long without data (times `patience`), a connection with a call is tried with a ping. If the answer
takes as long again, the connection ends."""


@dataclass(frozen=True)
class Identity:
    """PEM files: `certificate` and `key` prove who one end is, and `authority` checks the other."""

    authority: Path
    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the contents. Raises BadInput, naming a file that cannot be read."""
        authority, certificate, key = map(_read, (self.authority, self.certificate, self.key))
        return authority, certificate, key


def identity_of(directory: Path, name: str) -> Identity:
    """Return the identity of `name` in a directory that `entrain certs` has made."""
    return Identity(directory / AUTHORITY, directory / f"{name}.crt", directory / f"{name}.key")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; `entrain certs` makes certificates") from error


def _is_no_departure(record: logging.LogRecord) -> bool:
    """False for the error that grpc.aio logs when a client leaves while it is sent a message."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "ExecuteBatchError"


def add_port(server: Any, address: str, identity: Identity | None) -> int:
    """Let a gRPC server listen at `address`; return the port. Raises what gRPC raises, and BadInput.

    With an `identity` it serves over TLS, and only clients with a certificate of the authority. The server
    needs `SERVER_OPTIONS`.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_departure)
    if identity is None:
        return int(server.add_insecure_port(address))
    import grpc

    allow_many_files()  # connections that others hold open are to leave some

    authority, certificate, key = identity.read()
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    return int(server.add_secure_port(address, credentials))


def _channel_options() -> list[tuple[str, Any]]:
    limit_ms = round(1000 * patience(KEEPALIVE_S))
    return [
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", limit_ms),
        ("grpc.keepalive_timeout_ms", limit_ms),  # TCP, too, waits so long for an acknowledgement
        ("grpc.http2.ping_timeout_ms", limit_ms),
        ("grpc.http2.max_pings_without_data", 0),  # no limit
    ]


def open_channel(
    library: Any,
    address: str,
    options: Sequence[tuple[str, Any]] = (),
    identity: Identity | None = None,
    server: str = "",
) -> Any:
    """Return a channel of `library` (grpc or grpc.aio) to `address`: over TLS with an `identity`.

    It then accepts only the server whose certificate has the name `server`, whatever its address: switches of
    one machine share an address. An empty name stands for the address. Calls over a link that is cut end with
    UNAVAILABLE (`KEEPALIVE_S`). Raises BadInput.
    """
    options = [*_channel_options(), *options]
    if identity is None:
        return library.insecure_channel(address, options=options)
    import grpc

    authority, certificate, key = identity.read()
    named = [("grpc.ssl_target_name_override", server)] if server else []
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return library.secure_channel(address, credentials, options=[*options, *named])


def names_of(context: Any) -> tuple[str, ...]:
    """Return the subject alternative names of a call's client; none without TLS."""
    found: Iterable[bytes] = context.auth_context().get("x509_subject_alternative_name", ())
    return tuple(each.decode(errors="replace") for each in found)


def check_local(address: str, option: str, remedy: str) -> None:
    """Raise BadInput unless only this machine reaches `address` (`unix:PATH`, or HOST:PORT on loopback).

    The error names `option`, which gave the address, and the `remedy`.
    """
    if address.startswith("unix:"):
        return
    host = address.rpartition(":")[0].strip("[]")
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        name = f"{option} {address}".strip()
        raise BadInput(f"{name}: other machines reach it, and nobody would check who calls; {remedy}")
