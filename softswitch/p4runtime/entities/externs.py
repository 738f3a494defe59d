"""Counters, meters, registers and value sets (spec 9.3, 9.4, 9.6, 9.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from finsy.proto import p4r
from grpc import StatusCode

from softswitch.contract import Datapath, Match, MeterConfig
from softswitch.p4runtime.entities.counts import counts, fill_counts
from softswitch.p4runtime.entities.meters import fill_meter, meter_config, refuse_colours
from softswitch.p4runtime.p4info import Array, P4Info, decode, encode
from softswitch.p4runtime.status import MOST_READ, Refused, invalid


def _array(arrays: Mapping[int, Array], id_: int, what: str) -> Array:
    try:
        return arrays[id_]
    except KeyError:
        raise invalid(f"no {what} has id {id_:#x}") from None


def _modify_only(kind: int, what: str) -> None:
    if kind != p4r.Update.MODIFY:
        raise invalid(f"a {what} can only be modified")


def _cells(message: Any, array: Array, what: str) -> range:
    """Return the cells that a message refers to: one, or all if it has no index."""
    if not message.HasField("index"):
        return range(array.size)
    index = message.index.index
    if index < 0:
        raise invalid(f"{what} {array.name}: index {index} is negative")
    if index >= array.size:
        raise Refused(
            StatusCode.OUT_OF_RANGE,
            f"{what} {array.name}: index {index} is out of range: its size is {array.size}",
        )
    return range(index, index + 1)


class Counters:
    """Indexed counters."""

    def __init__(self, info: P4Info, datapath: Datapath) -> None:
        self._arrays = info.counters
        self._datapath = datapath

    def write(self, kind: int, message: Any) -> None:
        """Set one cell or all cells."""
        _modify_only(kind, "counter")
        array = _array(self._arrays, message.counter_id, "counter")
        cells = _cells(message, array, "counter")
        if message.HasField("data"):
            counted = counts(message.data, f"counter {array.name}")
            for index in cells:
                self._datapath.counter_write(array.name, index, *counted)

    def read(self, message: Any) -> Iterator[Any]:
        """Yield one cell, all cells of a counter, or all cells of all counters."""
        id_ = message.counter_id
        for array in [_array(self._arrays, id_, "counter")] if id_ else self._arrays.values():
            for index in _cells(message, array, "counter") if id_ else range(array.size):
                entity = p4r.Entity()
                entry = entity.counter_entry
                entry.counter_id, entry.index.index = array.id, index
                fill_counts(self._datapath.counter_read(array.name, index), entry.data)
                yield entity


class Meters:
    """Indexed meters. A cell without a configuration marks every packet green."""

    def __init__(self, info: P4Info, datapath: Datapath) -> None:
        self._arrays = info.meters
        self._datapath = datapath
        self._configs: dict[tuple[int, int], MeterConfig] = {}

    def write(self, kind: int, message: Any) -> None:
        """Configure one cell or all cells."""
        _modify_only(kind, "meter")
        array = _array(self._arrays, message.meter_id, "meter")
        refuse_colours(message, "counter_data", f"meter {array.name}")
        config = meter_config(message.config, f"meter {array.name}") if message.HasField("config") else None
        for index in _cells(message, array, "meter"):
            self._datapath.meter_write(array.name, index, config)
            if config is None:
                self._configs.pop((array.id, index), None)
            else:
                self._configs[array.id, index] = config

    def read(self, message: Any) -> Iterator[Any]:
        """Yield the configuration of one cell, of all cells of a meter, or of all cells of all meters."""
        refuse_colours(message, "counter_data", "meter")
        id_ = message.meter_id
        for array in [_array(self._arrays, id_, "meter")] if id_ else self._arrays.values():
            for index in _cells(message, array, "meter") if id_ else range(array.size):
                entity = p4r.Entity()
                entry = entity.meter_entry
                entry.meter_id, entry.index.index = array.id, index
                config = self._configs.get((array.id, index))
                if config is not None:
                    fill_meter(config, entry.config)
                yield entity


class Registers:
    """Registers of one bit<W> or int<W> per cell."""

    def __init__(self, info: P4Info, datapath: Datapath) -> None:
        self._arrays = info.registers
        self._datapath = datapath

    def write(self, kind: int, message: Any) -> None:
        """Set one cell or all cells."""
        _modify_only(kind, "register")
        array = _array(self._arrays, message.register_id, "register")
        cells = _cells(message, array, "register")
        if message.data.WhichOneof("data") != "bitstring":
            raise invalid(f"register {array.name}: data must be a bitstring of {array.width} bits")
        value = decode(message.data.bitstring, array.width, f"register {array.name}: data")
        for index in cells:
            self._datapath.register_write(array.name, index, value)

    def read(self, message: Any) -> Iterator[Any]:
        """Yield one cell, all cells of a register, or all cells of all registers."""
        id_ = message.register_id
        for array in [_array(self._arrays, id_, "register")] if id_ else self._arrays.values():
            cells = _cells(message, array, "register") if id_ else range(array.size)
            values: Iterable[int]
            if 1 < len(cells) <= MOST_READ:
                values = self._datapath.register_read_all(array.name)
            else:  # one, or too many to return
                values = (self._datapath.register_read(array.name, index) for index in cells)
            for index, value in zip(cells, values, strict=True):
                entity = p4r.Entity()
                entry = entity.register_entry
                entry.register_id, entry.index.index = array.id, index
                entry.data.bitstring = encode(value)
                yield entity


class ValueSets:
    """Parser value sets."""

    def __init__(self, info: P4Info, datapath: Datapath) -> None:
        self._arrays = info.value_sets
        self._datapath = datapath
        self._members: dict[int, tuple[tuple[Match, ...], ...]] = dict.fromkeys(self._arrays, ())

    def write(self, kind: int, message: Any) -> None:
        """Replace the members of a value set."""
        _modify_only(kind, "value set")
        array = _array(self._arrays, message.value_set_id, "value set")
        what = f"value set {array.name}"
        members = tuple(self._member(array, member.match, what) for member in message.members)
        if len(set(members)) < len(members):
            raise Refused(StatusCode.ALREADY_EXISTS, f"{what}: a member is given twice")
        if len(members) > array.size:
            raise Refused(StatusCode.RESOURCE_EXHAUSTED, f"{what} holds {array.size} members")
        self._datapath.value_set_write(array.name, members)
        self._members[array.id] = members

    @staticmethod
    def _member(array: Array, messages: Any, what: str) -> tuple[Match, ...]:
        given = {message.field_id: message for message in messages}
        if unknown := given.keys() - {key.id for key in array.keys}:
            raise invalid(f"{what}: no key has id {min(unknown)}")
        return tuple(
            key.match(given[key.id], what) if key.id in given else key.wildcard(what) for key in array.keys
        )

    def read(self, message: Any) -> Iterator[Any]:
        """Yield one value set, or all."""
        id_ = message.value_set_id
        for array in [_array(self._arrays, id_, "value set")] if id_ else self._arrays.values():
            entity = p4r.Entity()
            entity.value_set_entry.value_set_id = array.id
            for values in self._members[array.id]:
                member = entity.value_set_entry.members.add()
                for key, value in zip(array.keys, values, strict=True):
                    key.fill(value, member.match)
            yield entity
