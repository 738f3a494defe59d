"""All entities of one program: batched writes, wildcard reads, and the whole state for a new program."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from finsy.proto import p4r
from grpc import StatusCode

from machine.errors import EntrainError
from softswitch.contract import Datapath, Full
from softswitch.p4runtime.digests import Digests
from softswitch.p4runtime.entities.externs import Counters, Meters, Registers, ValueSets
from softswitch.p4runtime.entities.profiles import PortIsUp, Profiles
from softswitch.p4runtime.entities.queues import Queues
from softswitch.p4runtime.entities.replication import Replication
from softswitch.p4runtime.entities.tables import Tables
from softswitch.p4runtime.p4info import P4Info
from softswitch.p4runtime.status import Refused, internal, invalid

log = logging.getLogger(__name__)

# The kernel's errors for a full map.
_NO_ROOM = {errno.E2BIG, errno.ENOSPC, errno.ENOMEM}

Write = Callable[[int, Any], None]
Read = Callable[[Any], Iterator[Any]]


class Entities:
    """The entities that controllers write and read."""

    def __init__(
        self, info: P4Info, datapath: Datapath, port_is_up: PortIsUp, send: Callable[[Any], None]
    ) -> None:
        self._datapath = datapath
        self.profiles = Profiles(info, datapath, port_is_up)
        self.digests = Digests(info, send)
        tables = Tables(info, datapath, self.profiles)
        counters, meters = Counters(info, datapath), Meters(info, datapath)
        registers, value_sets = Registers(info, datapath), ValueSets(info, datapath)
        replication, queues = Replication(datapath), Queues(datapath)
        # Members and groups come before the table entries that refer to them.
        self._handlers: dict[str, tuple[Write, Read]] = {
            "action_profile_member": (self.profiles.write_member, self.profiles.read_members),
            "action_profile_group": (self.profiles.write_group, self.profiles.read_groups),
            "table_entry": (tables.write, tables.read),
            "direct_counter_entry": (tables.write_direct_counter, tables.read_direct_counter),
            "direct_meter_entry": (tables.write_direct_meter, tables.read_direct_meter),
            "counter_entry": (counters.write, counters.read),
            "meter_entry": (meters.write, meters.read),
            "register_entry": (registers.write, registers.read),
            "value_set_entry": (value_sets.write, value_sets.read),
            "packet_replication_engine_entry": (replication.write, replication.read),
            "digest_entry": (self.digests.write, self.digests.read),
            "extern_entry": (queues.write, queues.read),
        }
        self._tables = tables

    def write(self, updates: Iterable[Any]) -> list[Refused | None]:
        """Apply the updates in order, independently. Return an error, or None, for each."""
        with self._datapath.batch():
            return [self._attempt(update) for update in updates]

    def _attempt(self, update: Any) -> Refused | None:
        try:
            write, _ = self._handler(update.entity)
            if update.type not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
                raise invalid("the update has no type")
            write(update.type, getattr(update.entity, update.entity.WhichOneof("entity")))
        except Refused as refused:
            return refused
        except Full as error:
            return Refused(StatusCode.RESOURCE_EXHAUSTED, str(error))
        except EntrainError as error:
            if getattr(error, "errno", 0) in _NO_ROOM:
                return Refused(StatusCode.RESOURCE_EXHAUSTED, str(error))
            log.error("update failed: %s", error)
            return Refused(StatusCode.INTERNAL, str(error))
        except Exception:
            log.exception("update failed: %s", update)
            return internal()
        return None

    def _handler(self, entity: Any) -> tuple[Write, Read]:
        kind = entity.WhichOneof("entity")
        if kind is None:
            raise invalid("the entity is empty")
        if kind not in self._handlers:
            raise Refused(StatusCode.UNIMPLEMENTED, f"entities of kind {kind} are not supported")
        return self._handlers[kind]

    def read(self, entity: Any) -> Iterator[Any]:
        """Yield the entities that match `entity`. Raises Refused, possibly during iteration."""
        _, read = self._handler(entity)
        yield from read(getattr(entity, entity.WhichOneof("entity")))

    def state(self) -> Iterator[Any]:
        """Yield the updates that lead from an empty state to this one, without what packets change."""
        for kind in ("action_profile_member", "action_profile_group"):
            for entity in self._handlers[kind][1](getattr(p4r.Entity(), kind)):
                yield p4r.Update(type=p4r.Update.INSERT, entity=entity)
        yield from self._tables.state()
        for kind in ("meter_entry", "value_set_entry"):
            for entity in self._handlers[kind][1](getattr(p4r.Entity(), kind)):
                yield p4r.Update(type=p4r.Update.MODIFY, entity=entity)
        for kind in ("packet_replication_engine_entry", "digest_entry"):
            for entity in self._handlers[kind][1](getattr(p4r.Entity(), kind)):
                yield p4r.Update(type=p4r.Update.INSERT, entity=entity)
