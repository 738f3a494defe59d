"""Who is at the other end of a gRPC connection: certificates of one authority, on both ends.

`entrain certs` makes them. gRPC is imported when it is needed: few processes of entrain use certificates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine.errors import BadInput

AUTHORITY = "ca.crt"
"""The authority's certificate, in a directory of certificates."""
OPERATOR = "entrain:operator"
"""The subject alternative name of those who may write to switches."""
OPERATORS = "operator"
"""The file name, without suffix, of the operator's certificate and key."""


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


def server_credentials(identity: Identity) -> Any:
    """Return credentials of a server that serves only clients with a certificate of the authority."""
    import grpc

    authority, certificate, key = identity.read()
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)


def channel_credentials(identity: Identity) -> Any:
    """Return credentials of a client that has to show a certificate."""
    import grpc

    authority, certificate, key = identity.read()
    return grpc.ssl_channel_credentials(authority, key, certificate)


def channel_options(server: str) -> list[tuple[str, str]]:
    """Return channel options under which only the server called `server` is accepted, whatever its address.

    Switches of one machine share an address, so an address does not tell them apart.
    """
    return [("grpc.ssl_target_name_override", server)]


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
