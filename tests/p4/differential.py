"""softswitch against BMv2: the same program, the same entries, the same packets, and the same outputs.

`python -m tests.p4.differential [PROGRAM...] --packets N --seed S` runs longer than the test does. Where
BMv2's outcome is not determined by the packet, it is masked, here and nowhere else:

- metadata.p4: timestamps, queue depths and times in queues, and what random() drew (`UNSTEADY`);
- fabric.p4: the answer to a QUERY says the switch's time (`CLOCK`);
- fabric.p4: ECN marking, which depends on the queue's depth, is left off (threshold 0);
- meters run at rate 0, so that their colours depend on bursts alone and not on time;
- resubmission and recirculation are limited to three rounds, and multicast groups to 15 bits, because BMv2
  keeps clone sessions' replicas in groups beyond (random_packets.tame);
- ports that no target has an interface for are left out, on both sides.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from finsy import P4CounterData, P4CounterEntry, P4TableEntry
from finsy.proto import p4r

from tests.p4.bmv2 import Bmv2
from tests.p4.kinds import program
from tests.p4.netless import Netless
from tests.p4.random_entries import RandomEntries
from tests.p4.random_fabric import fabric_entities, fabric_packet
from tests.p4.random_packets import GENERATORS, packets
from tests.p4.targets import CPU_PORT, PORTS, Batch, Injected, Output, Program, Target
from tests.p4.test_features_metadata import STEADY_SIZE, UNSTEADY_SIZE

NAMES = [*GENERATORS, "fabric"]
FENCED = {"fabric": {PORTS[0], CPU_PORT}}  # counters' indices that the test's own packets count at, on BMv2
ROUND = 250  # packets per set of random entries
QUERY_ANSWER = b"\x88\xb5\x23"  # behind packet_in and both addresses: ethertype, version and kind
CLOCK = slice(2 + 14 + 12 + 120 + 8, 2 + 14 + 12 + 120 + 14)  # bytes_received, which says the switch's time
UNSTEADY = slice(14 + STEADY_SIZE, 14 + STEADY_SIZE + UNSTEADY_SIZE)


@dataclass
class Difference:
    """A packet that the targets treat differently, with the state that it meets."""

    program: str
    entities: list[p4r.Entity]
    before: list[Injected]  # what must be sent first; empty where the packet alone suffices
    packet: Injected
    outputs: tuple[list[Output], list[Output]] = field(default=([], []))
    counters: list[str] = field(default_factory=list)  # where all outputs are equal, but not what was counted

    def __str__(self) -> str:
        lines = [f"{self.program}: softswitch and BMv2 differ"]
        lines += [f"entity {str(entity).split()}" for entity in self.entities]
        lines += [f"first  {port} {packet.hex()}" for port, packet in self.before]
        lines += [f"packet {self.packet[0]} {self.packet[1].hex()}"]
        for name, outputs in zip(("softswitch", "BMv2"), self.outputs, strict=True):
            lines += [f"{name} -> {[(port, data.hex()) for port, data in outputs]}"]
        return "\n".join(lines + self.counters)


def mask(program: str, packet: bytes) -> bytes:
    """The packet without what is not determined."""
    if program == "metadata" and len(packet) >= UNSTEADY.stop and packet[12:14] != b"\x88\xb6":
        return packet[: UNSTEADY.start] + packet[UNSTEADY.stop :]
    if program == "fabric" and packet[14:17] == QUERY_ANSWER:
        return packet[: CLOCK.start] + packet[CLOCK.stop :]
    return packet


class Pair:
    """The two targets with one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.targets: list[Target] = []

    def __enter__(self) -> Pair:
        try:
            for kind in (Netless, Bmv2):
                self.targets.append(kind(self.program).__enter__())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for target in self.targets:
            target.close()

    def insert(self, entities: Sequence[p4r.Entity]) -> None:
        for target in self.targets:
            target.client.insert(*entities)

    def delete(self, entities: Sequence[p4r.Entity]) -> None:
        for target in self.targets:
            target.client.delete(*reversed(entities))

    def _masked(self, outputs: list[Output]) -> list[Output]:
        return sorted((port, mask(self.program.name, data)) for port, data in outputs)

    def run(self, sent: Sequence[Injected]) -> int | None:
        """Send to both; the first packet whose outputs differ, or None."""
        ours, theirs = (target.send_batch(sent) for target in self.targets)
        for number, (one, other) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
            if self._masked(one) != self._masked(other):
                return number
        if [mask(self.program.name, data) for data in ours.controller] != [
            mask(self.program.name, data) for data in theirs.controller
        ]:
            return self._first_packet_in(sent, ours, theirs)
        return None

    def _first_packet_in(self, sent: Sequence[Injected], ours: Batch, theirs: Batch) -> int:
        """Packet-ins say not which packet caused them: look packet by packet, as far as state allows."""
        for number, packet in enumerate(sent):
            if self.differs(packet):
                return number
        return len(sent) - 1

    def counters(self) -> list[str]:
        """The counters, indexed and direct, that differ."""
        names = [counter.preamble.name for counter in self.targets[0].client.schema.p4info.counters]
        found = []
        for name in names:
            ours, theirs = (target.client.read(P4CounterEntry(name)) for target in self.targets)
            for one, other in zip(ours, theirs, strict=True):
                if one != other and one.index not in FENCED.get(self.program.name, ()):
                    found.append(f"counter {name}[{one.index}]: {one.data} and {other.data}")
        for table in self.targets[0].client.schema.p4info.tables:
            if table.direct_resource_ids:
                wanted = P4TableEntry(table.preamble.name, counter_data=P4CounterData())
                ours, theirs = (target.client.read(wanted) for target in self.targets)
                # Not by key: BMv2 gives ranges that match anything back, where they should be left out.
                counts = [
                    sorted((entry.priority, str(entry.counter_data)) for entry in entries)
                    for entries in (ours, theirs)
                ]
                if counts[0] != counts[1]:
                    found.append(f"direct counters of {table.preamble.name}: {counts}")
        return found

    def both(self, packet: Injected) -> tuple[list[Output], list[Output]]:
        """What one packet becomes on each."""
        ours, theirs = (self._masked(target.send(*packet)) for target in self.targets)
        return ours, theirs

    def differs(self, packet: Injected) -> bool:
        ours, theirs = self.both(packet)
        return ours != theirs


def shrink(pair: Pair, entities: list[p4r.Entity], sent: Sequence[Injected], number: int) -> Difference:
    """A small packet and few entries that still differ; what it is not reproducible without is kept."""
    packet = sent[number]
    if not pair.differs(packet):
        before = list(sent[max(0, number - 5) : number])
        return Difference(pair.program.name, entities, before, packet, pair.both(packet))
    packet = _smaller_packet(packet, pair.differs)
    kept = list(entities)
    for entity in reversed(entities):
        try:
            pair.delete([entity])
        except Exception:  # another entity needs it; both targets must say so, or the next step shows it
            continue
        if pair.differs(packet):
            kept.remove(entity)
        else:
            pair.insert([entity])
    return Difference(pair.program.name, kept, [], packet, pair.both(packet))


def _smaller_packet(packet: Injected, differs: Callable[[Injected], bool], tries: int = 300) -> Injected:
    port, data = packet
    step = len(data) // 2
    while step and tries:
        tries -= 1
        if len(data) - step >= 14 and differs((port, data[:-step])):
            data = data[:-step]
        else:
            step //= 2
    for at in range(14, len(data)):
        if data[at] and tries:
            tries -= 1
            candidate = data[:at] + b"\0" + data[at + 1 :]
            if differs((port, candidate)):
                data = candidate
    return port, data


def meter_configs(pair: Pair, rng: random.Random) -> None:
    """Configure random meters at rate 0 alike on both targets."""
    for meter in pair.targets[0].client.schema.p4info.meters:
        for index in (0, 1, 7, 255):
            entity = p4r.Entity()
            entity.meter_entry.meter_id = meter.preamble.id
            entity.meter_entry.index.index = index
            burst = rng.choice([0, 5, 1000])
            entity.meter_entry.config.cburst, entity.meter_entry.config.pburst = (
                burst,
                burst + rng.choice([0, 300]),
            )
            for target in pair.targets:
                target.client.modify(entity)


def compare(name: str, count: int, seed: int) -> Difference | None:
    """Send `count` packets in rounds, each under its own random entries; the first difference, shrunk."""
    generate: Any = fabric_packet if name == "fabric" else GENERATORS[name]
    with Pair(program(name)) as pair:
        for number in range(-(-count // ROUND)):
            rng = random.Random(f"{name} {seed} {number}")
            info = pair.targets[0].client.schema.p4info
            entities = RandomEntries(info, rng.getrandbits(32)).all()
            if name == "fabric":
                entities = fabric_entities(pair.targets[0].client.schema, entities)
            pair.insert(entities)
            meter_configs(pair, rng)
            sent = packets(name, generate, rng, min(ROUND, count - number * ROUND))
            found = pair.run(sent)
            if found is not None:
                return shrink(pair, entities, sent, found)
            if counters := pair.counters():
                return Difference(name, entities, sent[:-1], sent[-1], counters=counters)
            pair.delete(entities)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares softswitch with BMv2, packet by packet.")
    parser.add_argument("programs", nargs="*", default=NAMES, metavar="PROGRAM")
    parser.add_argument("--packets", type=int, default=5000, metavar="N", help="per program (default 5000)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    options = parser.parse_args()
    for name in options.programs:
        found = compare(name, options.packets, options.seed)
        print(found if found else f"{name}: {options.packets} packets, no difference", flush=True)


if __name__ == "__main__":
    main()
