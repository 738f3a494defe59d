"""Random state and packets for the fabric's program: a leaf that works, and random entries on top of it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from finsy import P4Schema
from finsy.p4entity import encode_entities
from finsy.proto import p4r

from tests.p4.fabric import HOSTS, host_mac, leaf_entries
from tests.p4.packets import bits, ether
from tests.p4.random_entries import value
from tests.p4.random_packets import ipv4, payload
from wire.slot_header import EPOCHS, ETHERTYPE, LANES, MAX_U32, Kind, Lane, SlotHeader


def fabric_entities(schema: P4Schema, random_entities: Sequence[p4r.Entity]) -> list[p4r.Entity]:
    """The leaf's state and those random entries that do not collide with it. ECN stays off, and no port is
    limited in the number of its carriers: both depend on time."""
    entities = list(encode_entities(leaf_entries(), schema))
    taken = {_identity(entity) for entity in entities}
    fixed = {
        schema.tables["link"].id: (schema.actions["set_link"].params["ecn_threshold"].id, b"\0"),
        schema.tables["limits"].id: (schema.actions["set_limits"].params["carriers"].id, b"\xff" * 4),
    }
    for entity in random_entities:
        if entity.WhichOneof("entity") in ("action_profile_member", "action_profile_group"):
            continue
        if entity.table_entry.action.WhichOneof("type") in (
            "action_profile_member_id",
            "action_profile_group_id",
        ):
            entity.table_entry.action.Clear()
            entity.table_entry.action.action_profile_group_id = 1
        parameter, constant = fixed.get(entity.table_entry.table_id, (0, b""))
        for param in entity.table_entry.action.action.params:
            if param.param_id == parameter:
                param.value = constant
        if _identity(entity) not in taken:
            taken.add(_identity(entity))
            entities.append(entity)
    return entities


def _identity(entity: p4r.Entity) -> bytes:
    """What makes two entries the same: table, keys and priority."""
    kind = entity.WhichOneof("entity")
    if kind != "table_entry":
        return bytes(entity.SerializeToString(deterministic=True))
    key = p4r.TableEntry(table_id=entity.table_entry.table_id, priority=entity.table_entry.priority)
    key.match.extend(sorted(entity.table_entry.match, key=lambda match: match.field_id))
    return bytes(key.SerializeToString(deterministic=True))


def _address(rng: random.Random) -> int:
    """Mostly an address of the leaf's networks."""
    if rng.random() < 0.1:
        return value(rng, 32)
    network = rng.choice([0x0A000000, 0x0A000000, 0x0A010000, 0x0A020000, 0x0A080000, 0x0A090000])
    return network | rng.choice([1, 2, 3, 4, rng.randrange(256)])


def _source(rng: random.Random) -> int:
    """Mostly an address of the leaf's hosts: at the port of another one it is forged."""
    return 0x0A000000 | rng.choice(HOSTS) if rng.random() < 0.8 else _address(rng)


def _ip(rng: random.Random) -> bytes:
    return ipv4(rng, addresses=(_source(rng), _address(rng)), options=rng.random() < 0.1, right=0.95)


def _slot(rng: random.Random) -> bytes:
    kind = rng.choice([*Kind, *[Kind.SCHEDULE] * 7, *[Kind.FEEDBACK] * 2])
    lanes = tuple(
        Lane(
            delta=rng.choice([0, 1, -1, 100, -100, MAX_U32, -MAX_U32]),
            load=value(rng, 32),
            headroom=value(rng, 32),
        )
        for _ in range(LANES)
    )
    header = SlotHeader(
        kind=kind,
        base_slot=value(rng, 32),
        hops=value(rng, 8),
        port=value(rng, 9),
        epoch=rng.choice([0, 1, 2, 3, rng.getrandbits(16)]) if rng.random() < 0.98 else EPOCHS - 1,
        first_lane=rng.randrange(LANES) if rng.random() < 0.95 else value(rng, 16),
        flow=value(rng, 32),
        lanes=lanes,
    )
    return header.pack() + _ip(rng)


def _arp(rng: random.Random) -> bytes:
    fixed = [(1, 16), (0x0800, 16), (6, 8), (4, 8), (rng.choice([1, 1, 1, 2]), 16)]
    ends = [(value(rng, 48), 48), (_source(rng), 32), (0, 48), (_address(rng), 32)]
    return bits([*fixed, *ends]) + payload(rng)


def fabric_packet(rng: random.Random) -> bytes:
    """IPv4, carriers of every kind, ARP, or something else, from a host of the leaf."""
    kinds = [(0x0800, _ip), (ETHERTYPE, _slot), (0x0806, _arp), (0x86DD, payload)]
    ((ethertype, body),) = rng.choices(kinds, weights=(8, 8, 2, 1))
    return ether(ethertype, body(rng), src=host_mac(rng.choice(HOSTS)), dst=value(rng, 48))
