"""Who may do what through the controller's API: the `[controller]` table of a topology file.

    [controller]
    listen = "10.0.0.2:9600"      # over TLS, with the certificates of [topology]
    submitters = ["ann", "bob"]   # users of this machine
    readers = ["*"]

Over TLS the client's certificate names its role. On the Unix socket the kernel says which user calls: root
and the controller's own user are operators, and the table names the others.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pwd
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import grpc
from pydantic import Field

from controlplane.network import Topology
from machine import peers
from machine.address import check_address
from machine.errors import BadInput
from machine.tls import CONTROLLER, OPERATOR, READER, SUBMITTER, Identity, identity_of, names_of
from machine.toml import Strict, check, read_toml

Role = Literal["reader", "submitter", "operator"]
"""Each may do what those before it may."""

NEEDS: dict[str, Role] = {
    "GetNetwork": "reader",
    "WatchLoads": "reader",
    "ListTraining": "reader",
    "ListDrops": "reader",
    "Place": "reader",
    "ListJobs": "reader",
    "WatchJobs": "reader",
    "ListCircuits": "reader",
    "Submit": "submitter",
    "SubmitAndWatch": "submitter",
    "Cancel": "submitter",
    "Deploy": "operator",
    "Shutdown": "operator",
}
"""The least role that may make each call. A submitter's `Cancel` is for own jobs."""

STREAMS_PER_CALLER = 16
"""Streams that one submitter or reader has at a time."""
ANYBODY = "*"


class ControllerTable(Strict):
    """The `[controller]` table."""

    listen: str | None = None
    submitters: Annotated[tuple[str, ...], Field(strict=False)] = ()
    readers: Annotated[tuple[str, ...], Field(strict=False)] = ()


class _File(Strict):
    controller: ControllerTable = ControllerTable()


@dataclass(frozen=True)
class Caller:
    """Who makes a call. `name` is a submitter's or a reader's; operators have none."""

    role: Role
    name: str = ""


@dataclass(frozen=True)
class Access:
    """Who may use the API. Without any of these it is its owner's alone, on a Unix socket.

    `submitters` and `readers` are users of this machine, by name. `listen` is HOST:PORT for TLS.
    """

    listen: str | None = None
    identity: Identity | None = None
    submitters: frozenset[str] = frozenset()
    readers: frozenset[str] = frozenset()

    @property
    def for_users(self) -> bool:
        """Whether users of this machine other than the owner may call."""
        return bool(self.submitters or self.readers)

    def caller(self, context: Any) -> Caller | None:
        """Return who makes a call; None for somebody without a role."""
        peer = context.peer()
        if peer.startswith("unix-abstract:"):
            return self._user(peers.user_of(peer))
        if peer.startswith("unix:"):  # only the owner can connect
            return Caller("operator")
        return _of_certificate(names_of(context))

    def _user(self, number: int) -> Caller | None:
        if number in (0, os.geteuid()):
            return Caller("operator")
        try:
            name = pwd.getpwuid(number).pw_name
        except KeyError:
            name = str(number)
        for role, known in (("submitter", self.submitters), ("reader", self.readers)):
            if name in known or ANYBODY in known:
                return Caller(role, name)  # type: ignore[arg-type]
        return None


def _of_certificate(names: tuple[str, ...]) -> Caller | None:
    if OPERATOR in names:
        return Caller("operator")
    for name in names:
        if name.startswith(SUBMITTER) and name != SUBMITTER:
            return Caller("submitter", name.removeprefix(SUBMITTER))
    return Caller("reader", READER) if READER in names else None


def load_access(path: Path, topology: Topology) -> Access:
    """Return what the `[controller]` table of a topology file says. Raises BadInput."""
    tables = read_toml(path)
    table = check(_File, {key: tables[key] for key in ("controller",) if key in tables}, str(path)).controller
    for key, names in (("submitters", table.submitters), ("readers", table.readers)):
        for name in names:
            if name != ANYBODY and not _is_user(name):
                raise BadInput(
                    f"{path}: [controller], {key}: there is no user {name!r} on this machine; add it"
                )
    identity = None
    if table.listen is not None:
        certificates = next((each.certificates for each in topology.switches if each.certificates), None)
        if certificates is None:
            raise BadInput(
                f"{path}: [controller], listen: needs certificates; make them (`entrain certs`), and add "
                f"certificates to [topology]"
            )
        check_address(table.listen)
        identity = identity_of(certificates, CONTROLLER)
    return Access(table.listen, identity, frozenset(table.submitters), frozenset(table.readers))


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


class Guarded:
    """A servicer of the API whose calls are answered for those who have the role."""

    def __init__(self, servicer: Any, access: Access) -> None:
        self._access = access
        self._streams: Counter[Caller] = Counter()
        for name, role in NEEDS.items():
            method = getattr(servicer, name)
            guarded = self._stream if inspect.isasyncgenfunction(method) else self._unary
            setattr(self, name, guarded(name, method, role))

    def _unary(self, name: str, method: Callable[..., Any], needed: Role) -> Callable[..., Any]:
        async def call(request: Any, context: Any) -> Any:
            await self._check(name, needed, context)
            return await method(request, context)

        return call

    def _stream(self, name: str, method: Callable[..., Any], needed: Role) -> Callable[..., Any]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            caller = await self._check(name, needed, context)
            if caller.role != "operator" and self._streams[caller] >= STREAMS_PER_CALLER:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{caller.name} has {STREAMS_PER_CALLER} streams already; end one of them",
                )
            with self._counted(caller):
                async for answer in method(request, context):
                    yield answer

        return call

    @contextlib.contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            self._streams += Counter()  # forgets those without streams

    async def _check(self, name: str, needed: Role, context: Any) -> Caller:
        caller = self._access.caller(context)
        roles = get_args(Role)
        if caller is None or roles.index(caller.role) < roles.index(needed):
            who = "the caller has no role" if caller is None else f"{caller.name} is a {caller.role}"
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"{name}: {who}, and this needs the role {needed}"
            )
            raise AssertionError("abort raises")
        return caller
