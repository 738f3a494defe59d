"""Read counters and registers of a switch by name, whatever its program: P4Info comes from the switch.

gRPC connects in threads that stay in the namespace in which they started. `cells_in` therefore reads in a
process of its own, `python -m entrain.counters`, which is in the switch's namespace from its start.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import finsy as fy
import grpc
from finsy.proto import p4r, p4r_grpc

from machine import tls
from machine.errors import BadInput, EntrainError
from machine.explain import suggestion
from machine.patience import patience

TIMEOUT_S = patience(10.0)
DIRECT = "direct_counter"


@dataclass(frozen=True)
class Cell:
    """One cell of a counter or of a register. A direct counter has a cell per table entry, and no indices."""

    name: str
    index: int = 0
    packets: int = 0
    bytes: int = 0
    value: int = 0
    """Of a register."""
    kind: str = "counter"
    """Or `register` or `direct_counter`."""
    entry: str = ""
    """Of a direct counter: table and match."""

    @property
    def is_zero(self) -> bool:
        """Whether nothing has been counted or stored."""
        return not (self.packets or self.bytes or self.value)


def cells_in(
    namespace: Path | None, address: str, device_id: int, name: str, identity: tls.Identity | None = None
) -> list[Cell]:
    """Return what `read_cells` returns, of a switch in a network namespace (None: the present one)."""
    enter = ["nsenter", f"--net={namespace}"] if namespace is not None else []
    arguments = [address, str(device_id), name]
    if identity is not None:
        arguments += [str(identity.authority), str(identity.certificate), str(identity.key)]
    command = [*enter, sys.executable, "-m", "entrain.counters", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise (BadInput if done.returncode == 2 else EntrainError)(done.stderr.strip())
    return [Cell(**each) for each in json.loads(done.stdout)]


def read_cells(address: str, device_id: int, name: str, identity: tls.Identity | None = None) -> list[Cell]:
    """Return all cells of the counter, direct counter or register called `name`, or that ends with `.NAME`.

    `address` is the switch's P4Runtime server, in the present network namespace. Raises BadInput if there is
    none of this name, and EntrainError if the switch does not answer or its target does not support reading.
    """
    with tls.open_channel(grpc, address, identity=identity) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        try:
            found = stub.GetForwardingPipelineConfig(
                p4r.GetForwardingPipelineConfigRequest(device_id=device_id), timeout=TIMEOUT_S
            )
            schema = fy.P4Schema(found.config.p4info)
            kind, number = _find(schema.p4info, name)
            entity = p4r.Entity()
            wanted = getattr(entity, f"{kind}_entry")
            if kind == DIRECT:
                wanted.table_entry.table_id = number
            else:
                setattr(wanted, f"{kind}_id", number)
            request = p4r.ReadRequest(device_id=device_id, entities=[entity])
            replies = stub.Read(request, timeout=TIMEOUT_S)
            return [_cell(name, kind, each, schema) for reply in replies for each in reply.entities]
        except grpc.RpcError as error:
            told = error.details() if isinstance(error, grpc.Call) else error
            raise EntrainError(f"{address}: cannot read {name}: {told}") from error


def _find(p4info: Any, name: str) -> tuple[str, int]:
    """Return the kind of what is called `name`, and its number; a direct counter's is that of its table."""
    known = {full: (kind, number) for full, kind, number in _named(p4info)}
    matches = [full for full in known if full == name or full.endswith(f".{name}")]
    if not known:
        raise BadInput(f"{name}: the switch's program has no counters and no registers")
    if len(matches) != 1:
        near = f"it has {', '.join(matches)}" if matches else suggestion(name, known)
        raise BadInput(f"{name}: the program has no counter or register of this name; {near}")
    return known[matches[0]]


def _named(p4info: Any) -> Iterator[tuple[str, str, int]]:
    yield from ((counter.preamble.name, "counter", counter.preamble.id) for counter in p4info.counters)
    yield from ((register.preamble.name, "register", register.preamble.id) for register in p4info.registers)
    yield from (
        (counter.preamble.name, DIRECT, counter.direct_table_id) for counter in p4info.direct_counters
    )


def _cell(name: str, kind: str, entity: Any, schema: fy.P4Schema) -> Cell:
    if kind == DIRECT:
        direct = fy.P4DirectCounterEntry.decode(entity, schema)
        assert direct.table_entry is not None, "a switch names the entry of each count"
        entry = f"{direct.table_id} {direct.table_entry.match_str(schema)}"
        return Cell(name, 0, direct.packet_count, direct.byte_count, 0, kind, entry)
    indexed = getattr(entity, f"{kind}_entry")
    if kind == "register":
        return Cell(name, indexed.index.index, value=int.from_bytes(indexed.data.bitstring), kind=kind)
    return Cell(name, indexed.index.index, indexed.data.packet_count, indexed.data.byte_count)


def main(address: str, device_id: str, name: str, *files: str) -> int:
    """Print the cells as JSON, or the error. Return the exit status, 2 for bad input."""
    identity = tls.Identity(*map(Path, files)) if files else None
    try:
        print(json.dumps([asdict(each) for each in read_cells(address, int(device_id), name, identity)]))
    except EntrainError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
