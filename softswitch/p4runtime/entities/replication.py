"""The packet replication engine: multicast groups and clone sessions (spec 9.5)."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from finsy.proto import p4r
from grpc import StatusCode

from softswitch.contract import Datapath
from softswitch.p4runtime.entities.profiles import port_number
from softswitch.p4runtime.p4info import encode
from softswitch.p4runtime.status import Refused, invalid, not_found

Replicas = tuple[tuple[int, int], ...]  # port and replication id (egress_rid)

MAX_GROUP = (1 << 16) - 1  # v1model's mcast_grp and egress_rid have 16 bits
MAX_SESSION = (1 << 15) - 1  # BMv2's mirroring sessions


@dataclass(frozen=True)
class _Group:
    replicas: Replicas
    numbered: bool  # uses the deprecated egress_port, and is read back that way
    metadata: bytes = b""


@dataclass(frozen=True)
class _Session:
    replicas: Replicas
    numbered: bool
    packet_length: int = 0


def _replicas(messages: Any, what: str) -> Replicas:
    replicas = []
    for message in messages:
        if message.backup_replicas:
            raise Refused(StatusCode.UNIMPLEMENTED, f"{what}: backup replicas are not supported")
        if message.WhichOneof("port_kind") == "port":
            port = port_number(message.port, f"{what}: port of a replica")
        else:
            port = message.egress_port
        if message.instance > MAX_GROUP:
            raise invalid(f"{what}: instance {message.instance} of a replica has more than 16 bits")
        replicas.append((port, message.instance))
    if len(set(replicas)) < len(replicas):
        raise invalid(f"{what}: two replicas have the same port and instance")
    return tuple(replicas)


def _numbered(messages: Any) -> bool:
    return any(message.WhichOneof("port_kind") == "egress_port" for message in messages)


def _fill(entry: _Group | _Session, messages: Any) -> None:
    for port, instance in entry.replicas:
        if entry.numbered:
            messages.add(egress_port=port, instance=instance)
        else:
            messages.add(port=encode(port), instance=instance)


def _check(kind: int, id_: int, most: int, known: Container[int], what: str) -> None:
    if not 0 < id_ <= most:
        raise invalid(f"{what}: the id is not in 1..{most}")
    if kind == p4r.Update.INSERT and id_ in known:
        raise Refused(StatusCode.ALREADY_EXISTS, f"{what} already exists")
    if kind != p4r.Update.INSERT and id_ not in known:
        raise not_found(f"{what} does not exist")


class Replication:
    """The multicast groups and clone sessions of one program."""

    def __init__(self, datapath: Datapath) -> None:
        self._datapath = datapath
        self._groups: dict[int, _Group] = {}
        self._sessions: dict[int, _Session] = {}

    def write(self, kind: int, message: Any) -> None:
        """Apply an update of a PacketReplicationEngineEntry."""
        match message.WhichOneof("type"):
            case "multicast_group_entry":
                self._write_group(kind, message.multicast_group_entry)
            case "clone_session_entry":
                self._write_session(kind, message.clone_session_entry)
            case _:
                raise invalid("the packet replication engine entry is neither a group nor a session")

    def _write_group(self, kind: int, message: Any) -> None:
        id_ = message.multicast_group_id
        what = f"multicast group {id_}"
        _check(kind, id_, MAX_GROUP, self._groups, what)
        if kind == p4r.Update.DELETE:
            self._datapath.multicast_delete(id_)
            del self._groups[id_]
            return
        group = _Group(_replicas(message.replicas, what), _numbered(message.replicas), message.metadata)
        self._datapath.multicast_set(id_, group.replicas)
        self._groups[id_] = group

    def _write_session(self, kind: int, message: Any) -> None:
        id_ = message.session_id
        what = f"clone session {id_}"
        _check(kind, id_, MAX_SESSION, self._sessions, what)
        if kind == p4r.Update.DELETE:
            self._datapath.clone_session_delete(id_)
            del self._sessions[id_]
            return
        if message.class_of_service:
            raise Refused(StatusCode.UNIMPLEMENTED, f"{what}: v1model has no classes of service")
        if message.packet_length_bytes < 0:
            raise invalid(f"{what}: packet_length_bytes is negative")
        session = _Session(
            _replicas(message.replicas, what), _numbered(message.replicas), message.packet_length_bytes
        )
        self._datapath.clone_session_set(id_, session.replicas, session.packet_length)
        self._sessions[id_] = session

    def read(self, message: Any) -> Iterator[Any]:
        """Yield one group or session, or all of them for id 0."""
        kind = message.WhichOneof("type")
        if kind in (None, "multicast_group_entry"):
            for id_, group in self._groups.items():
                if message.multicast_group_entry.multicast_group_id in (0, id_):
                    entity = p4r.Entity()
                    entry = entity.packet_replication_engine_entry.multicast_group_entry
                    entry.multicast_group_id, entry.metadata = id_, group.metadata
                    _fill(group, entry.replicas)
                    yield entity
        if kind in (None, "clone_session_entry"):
            for id_, session in self._sessions.items():
                if message.clone_session_entry.session_id in (0, id_):
                    entity = p4r.Entity()
                    entry = entity.packet_replication_engine_entry.clone_session_entry
                    entry.session_id, entry.packet_length_bytes = id_, session.packet_length
                    _fill(session, entry.replicas)
                    yield entity
