"""Who may do what through the controller's API: the `[controller]` table of a topology file.

    [controller]
    listen = "10.0.0.2:9600"      # over TLS, with the certificates of [topology]
    submitters = ["ann", "bob"]   # users of this machine
    readers = ["*"]

Over TLS the client's certificate names its role. On the Unix socket the kernel says which user calls: root
and the controller's own user are operators, and the table names the others.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from controlplane.network import Topology
from machine import callers, peers
from machine.address import check_address
from machine.callers import Bound, Places
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

PLACES = Places(
    calls=Bound(of_one=16, of_all=256, of_operators=256),
    streams=Bound(of_one=16, of_all=256, of_operators=256),
    rate=20.0,
    burst=40,
)
"""What submitters and readers, and operators, can have of a controller."""
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
        return _of_certificate(context)

    def admit(self, context: Any, method: str) -> callers.Caller:
        """Return who makes a call of `method`, refused without the role that it needs."""
        caller, name = self.caller(context), _name(context)
        if caller is not None and caller.role == "operator":
            return callers.Caller(name, operator=True)
        needed = NEEDS.get(method, "reader")
        roles = get_args(Role)
        if caller is not None and roles.index(caller.role) >= roles.index(needed):
            return callers.Caller(caller.name)
        who = "the caller has no role" if caller is None else f"{caller.name} is a {caller.role}"
        return callers.Caller(name, refusal=f"{method}: {who}, and this needs the role {needed}")

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


def _of_certificate(context: Any) -> Caller | None:
    names = names_of(context)
    if OPERATOR in names:
        return Caller("operator")
    for name in names:
        if name.startswith(SUBMITTER) and name != SUBMITTER:
            return Caller("submitter", name.removeprefix(SUBMITTER))
    return Caller("reader", callers.certificate_of(context)) if READER in names else None


def _name(context: Any) -> str:
    """Return the caller's name in words: a user's number, or a certificate's name."""
    peer = context.peer()
    if peer.startswith("unix-abstract:"):
        return f"user {peers.user_of(peer)}"
    return callers.certificate_of(context)


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
