"""The layout of packet headers, metadata, and the memory shared with user space.

The compiler generates C from these layouts, and the datapath packs and unpacks bytes by them. Each is
computed once, here, from the program alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from softswitch.compiler.program import (
    Action,
    FieldRef,
    FieldType,
    Header,
    HeaderRef,
    HeaderType,
    Program,
    Unsupported,
    fields_read,
)

MAX_BITS = 1024  # widest field; an operator's limbs must fit on BPF's 512-byte stack


def limbs(bits: int) -> int:
    """Return the number of 64-bit limbs of an unsigned integer of `bits`."""
    return (bits + 63) // 64


def size_of(bits: int) -> int:
    """Return the bytes of the native integer that holds `bits`: 1, 2, 4, 8, or whole limbs."""
    for size in (1, 2, 4, 8):
        if bits <= 8 * size:
            return size
    return 8 * limbs(bits)


def align(value: int, to: int) -> int:
    return (value + to - 1) // to * to


@dataclass(frozen=True)
class HeaderSlot:
    """Where a packet header is stored. `base` is C for its first byte, `fixed` its bytes without the varbit.

    A varbit field begins at byte `varbit_at` and has room for `varbit_room` bytes. The fields that follow it
    on the wire are stored after that room.
    """

    header: Header
    base: str
    index: int
    fixed: int
    varbit_at: int = 0
    varbit_room: int = 0

    @property
    def room(self) -> int:
        return self.fixed + self.varbit_room

    @property
    def valid(self) -> str:
        """C lvalue of the header's validity, as returned by P4's isValid()."""
        return f"phv->valid[{self.index}]"

    @property
    def present(self) -> str:
        """C condition for including the header in copies, keys and hashes. In metadata it is always true."""
        return "1" if self.header.metadata else self.valid

    @property
    def length(self) -> str:
        """C expression for the header's current bytes on the wire."""
        return f"({self.fixed} + phv->varbit[{self.index}])" if self.varbit_room else str(self.fixed)


def field_offset(kind: HeaderType, name: str) -> int:
    """Return the bit offset of a field in the header's slot."""
    offset = 0
    for f in kind.fields:
        if f.name == name:
            return offset
        offset += 8 * _varbit_room(kind) if f.varbit else f.bits
    raise KeyError(name)


def _varbit_room(kind: HeaderType) -> int:
    return align(max(0, (kind.max_bytes or 0) - kind.bits // 8), 8)


@dataclass(frozen=True)
class Member:
    """A member of a packed record."""

    name: str
    offset: int
    bits: int

    @property
    def size(self) -> int:
        return size_of(self.bits)


@dataclass(frozen=True)
class Record:
    """A record of native integers, naturally aligned."""

    members: tuple[Member, ...]
    size: int

    def pack(self, values: tuple[int, ...]) -> bytes:
        """Return the packed record. This, like all BPF code here, is for little-endian hosts only."""
        raw = bytearray(self.size)
        for member, value in zip(self.members, values, strict=True):
            raw[member.offset : member.offset + member.size] = value.to_bytes(member.size, "little")
        return bytes(raw)

    def unpack(self, raw: bytes) -> tuple[int, ...]:
        return tuple(int.from_bytes(raw[m.offset : m.offset + m.size], "little") for m in self.members)


def record(fields: list[tuple[str, int]], *, start: int = 0, to: int = 8, order: bool = False) -> Record:
    """Lay out fields (name, bits) from byte `start`. `order` puts the widest first, which leaves no holes."""
    offsets: dict[int, int] = {}
    at = start
    indices = range(len(fields))
    for i in sorted(indices, key=lambda i: -min(8, size_of(fields[i][1]))) if order else indices:
        size = size_of(fields[i][1])
        at = align(at, min(8, size))
        offsets[i] = at
        at += size
    members = tuple(Member(name, offsets[i], bits) for i, (name, bits) in enumerate(fields))
    return Record(members, align(max(at, start, 1), to))


def arguments(action: Action) -> Record:
    """Return the layout of an action's arguments in a table entry, after the head of 8 bytes."""
    return record([(f"p{i}", bits) for i, (_, bits) in enumerate(action.params)], start=8)


def _types_of_headers(program: Program) -> set[str]:
    """Return the types that are headers in P4, judging by their use, since the JSON does not say."""
    used = {ref.header for ref in fields_read(program) if ref.field == "$valid$"}
    for action in program.actions:
        for primitive in action.primitives:
            if primitive.op in ("add_header", "remove_header"):
                used.update(arg.name for arg in primitive.args if isinstance(arg, HeaderRef))
    return {
        h.type.name
        for h in program.headers.values()
        if not h.metadata or h.type.varbit is not None or h.name in used
    }


class Layout:
    """The state of the packet being processed (`struct phv`).

    Metadata fields are native integers. Headers keep their wire format, each in a slot padded to 8 bytes plus
    8 more, so that a single load can read any field without leaving the slot.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots: dict[str, HeaderSlot] = {}
        self.metadata: dict[FieldRef, str] = {}
        self.stack_index = {name: i for i, name in enumerate([*program.stacks, *program.union_stacks])}
        self.stack_stride: dict[str, int] = {}
        self._members: list[str] = []
        self._slots: list[str] = []
        self._metadata_bytes = 0
        types = _types_of_headers(program)
        # Headers within metadata have the packet's layout, so that either can be copied to the other.
        self.copies = [h for h in program.headers.values() if h.metadata and h.type.name in types]
        self._place_headers()
        self._place_metadata()
        self.union_of = {m: u for u in program.unions.values() for m in u.members}
        self.action_code = {name: i for i, name in enumerate(dict.fromkeys(a.name for a in program.actions))}

    def _place_metadata(self) -> None:
        found: list[tuple[int, FieldRef, FieldType]] = []
        for header in self.program.headers.values():
            if not header.metadata or header in self.copies:
                continue
            for f in header.type.fields:
                if f.bits > MAX_BITS:
                    raise Unsupported(f"softswitch cannot run field {header.name}.{f.name} of {f.bits} bits")
                found.append((size_of(f.bits), FieldRef(header.name, f.name), f))
        for number, (size, ref, _) in enumerate(sorted(found, key=lambda item: -item[0])):
            name = f"m{number}"
            self.metadata[ref] = name
            kind = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}.get(size)
            self._members.append(f"\t{kind} {name};" if kind else f"\tu64 {name}[{size // 8}];")
            self._metadata_bytes += size

    def _place_headers(self) -> None:
        stacked = {e: (s.name, i) for s in self.program.stacks.values() for i, e in enumerate(s.elements)}
        ordered = [e for s in self.program.stacks.values() for e in s.elements]
        ordered += [h.name for h in self.program.headers.values() if not h.metadata and h.name not in stacked]
        ordered += [h.name for h in self.copies]
        for index, name in enumerate(ordered):
            header = self.program.headers[name]
            kind = header.type
            fixed, rest = divmod(kind.bits, 8)
            if rest:
                raise Unsupported(
                    f"softswitch cannot run header {name}: {kind.bits} bits are not whole bytes"
                )
            varbit_at = 0
            if kind.varbit is not None:
                varbit_at = field_offset(kind, kind.fields[kind.varbit].name)
                if varbit_at % 8:
                    raise Unsupported(f"softswitch cannot run header {name}: its varbit begins within a byte")
            for f in kind.fields:
                if f.bits > MAX_BITS:
                    raise Unsupported(f"softswitch cannot run field {name}.{f.name} of {f.bits} bits")
            room = _varbit_room(kind)
            stride = align(fixed + room, 8) + 8
            if name in stacked:
                stack, position = stacked[name]
                self.stack_stride[stack] = stride
                base = f"((u8 *)phv->s{self.stack_index[stack]} + {position * stride})"
                if position == 0:
                    count = len(self.program.stacks[stack].elements)
                    self._slots.append(f"\tu64 s{self.stack_index[stack]}[{count * stride // 8}];")
            else:
                base = f"((u8 *)phv->h{index})"
                area = self._members if header.metadata else self._slots
                area.append(f"\tu64 h{index}[{stride // 8}];")
            self.slots[name] = HeaderSlot(header, base, index, fixed, varbit_at // 8, room)

    @property
    def size(self) -> int:
        """Approximate bytes of all headers and metadata."""
        return self._metadata_bytes + sum(align(s.room, 8) + 8 for s in self.slots.values())

    def first_slot(self, stack: str) -> HeaderSlot:
        return self.slots[self.program.stacks[stack].elements[0]]

    def declare(self) -> str:
        """Return C for `struct phv`."""
        count = max(1, len(self.slots))
        stacks = max(1, len(self.stack_index))
        pad = align(self._metadata_bytes, 8) - self._metadata_bytes
        lines = ["struct phv {", *self._members]
        if pad:
            lines.append(f"\tu8 metadata_pad[{pad}];")
        lines += [
            "\t/* requests to the traffic manager; cleared with the metadata */",
            "\tu64 control[0];",
            "\tu16 clone_session, clone_list, digest_list, resubmit_list, recirculate_list;",
            "\tu8 exits, failed;",
            "\tu32 cut; /* maximum length of a clone, in bytes */",
            "\t/* the packet */",
            "\tu64 packet[0];",
            "\tu32 parsed; /* bytes of the packet that the parser extracted */",
            "\tu32 length; /* of the packet; add_header and remove_header update it */",
            "\tu32 arrived; /* length at the last arrival, in bytes */",
            "\tu32 truncated; /* maximum number of bytes to send */",
            "\tu32 segments; /* number of packets that a GSO packet represents */",
            "\tu32 dirty; /* whether the headers differ from the packet's */",
            "\tu32 checksum_error, packet_pad;",
            f"\tu8 next[{align(stacks, 8)}];",
            f"\tu8 valid[{align(count, 8)}];",
            f"\tu16 varbit[{align(count, 4)}];",
            "\tu64 headers[0];",
            *self._slots,
            "};",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class SharedArea:
    """`struct shared`: the memory that user space and the program both access."""

    members: Mapping[str, tuple[int, int]]  # by name: offset, bytes
    size: int
    declaration: str


def shared_area(members: list[tuple[str, str, int]]) -> SharedArea:
    """Lay out members, each on its own cache line: name, C declaration with %s for the name, bytes."""
    placed: dict[str, tuple[int, int]] = {}
    at = 0
    lines = ["struct shared {"]
    for name, declaration, size in members:
        placed[name] = (at, size)
        padded = align(size, 64)
        lines.append("\t" + declaration.replace("%s", name) + ";")
        if padded != size:
            lines.append(f"\tu8 pad_{name}[{padded - size}];")
        at += padded
    lines.append("} shared;")
    return SharedArea(placed, at, "\n".join(lines))
