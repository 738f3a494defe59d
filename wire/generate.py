"""Generates from the slot header's definition its P4 header, its C struct and Wireshark's dissector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wire.dissector import LUA, dissector
from wire.slot_header import (
    ETHERTYPE,
    FIELDS,
    HEADER_BYTES,
    LANE_FIELDS,
    LANES,
    RATE_UNIT_MBPS,
    TAIL_FIELDS,
    VERSION,
    FieldSpec,
    Kind,
)

_ROOT = Path(__file__).resolve().parent.parent
P4_HEADER = _ROOT / "p4src/shared/slot_header.p4"
C_HEADER = _ROOT / "hostbpf/bpf/slot_header.h"

_NOTICE = "Generated from wire/slot_header.toml by `python -m wire`; edit that file."


def p4_header() -> str:
    """Return the P4 constants and header types, without a stack of lanes, which Tofino does not allow."""

    def fields(specs: tuple[FieldSpec, ...]) -> str:
        return "\n".join(f"    bit<{spec.bits}> {spec.name};".ljust(34) + f"// {spec.doc}" for spec in specs)

    kinds = "\n".join(f"const bit<4> SLOT_{kind.name} = {kind.value};" for kind in Kind)
    return f"""// {_NOTICE}
#ifndef _SLOT_HEADER_P4_
#define _SLOT_HEADER_P4_

const bit<16> ETHERTYPE_SLOT = {ETHERTYPE:#06x};
const bit<4> SLOT_VERSION = {VERSION};
const bit<16> SLOT_LANES = {LANES};
{kinds}

header slot_t {{
{fields(FIELDS)}
}}

header lane_t {{
{fields(LANE_FIELDS)}
}}

header slot_tail_t {{
{fields(TAIL_FIELDS)}
}}

// M(n) once for each of the K = {LANES} lanes.
#define FOR_EACH_LANE(M) {" ".join(f"M({lane})" for lane in range(LANES))}

#endif
"""


_C_INTEGERS = {8: "__u8", 16: "__be16", 32: "__be32", 64: "__be64"}
"""The type of a C member by its bits; others are arrays of bytes."""
_C_ORDER = {8: "", 16: "bpf_htons", 32: "bpf_htonl", 64: "bpf_cpu_to_be64"}


def _members(specs: tuple[FieldSpec, ...]) -> Iterator[tuple[FieldSpec, ...]]:
    """Yield the fields of each C member: one, or two of four bits."""
    rest = iter(specs)
    for spec in rest:
        yield (spec, next(rest)) if spec.bits < 8 else (spec,)


def _c_fields(specs: tuple[FieldSpec, ...]) -> str:
    lines = []
    for spec, *low in _members(specs):
        if low:
            lines.append(f"\t__u8 {spec.name}_{low[0].name}; /* high, low four bits */")
        elif spec.bits in _C_INTEGERS:
            lines.append(f"\t{_C_INTEGERS[spec.bits]} {spec.name}; /* {spec.doc} */")
        else:
            lines.append(f"\t__u8 {spec.name}[{spec.bits // 8}]; /* {spec.doc} */")
    return "\n".join(lines)


def _c_starts(specs: tuple[FieldSpec, ...], struct: str) -> Iterator[str]:
    """Return C that assigns the non-zero start values to the members of `struct`."""
    for spec, *low in _members(specs):
        member = struct + spec.name
        if not any(field.start for field in (spec, *low)):
            continue
        if low:
            yield f"{member}_{low[0].name} = {spec.start} << 4 | {low[0].start};"
        elif spec.bits in _C_ORDER:
            order, suffix = _C_ORDER[spec.bits], "ULL" if spec.bits == 64 else ""
            value = f"{spec.start:#x}{suffix}"
            yield f"{member} = {order}({value});" if order else f"{member} = {value};"
        else:
            for number, byte in enumerate(spec.start.to_bytes(spec.bits // 8, "big")):
                yield f"{member}[{number}] = {byte:#x};"


def c_header() -> str:
    """Return the C structs, packed and in network byte order, and a function that initializes a header."""
    starts = "".join(f"\n\t{line}" for line in _c_starts(FIELDS + TAIL_FIELDS, "header->"))
    lane_starts = "".join(f"\n\t\t{line}" for line in _c_starts(LANE_FIELDS, "header->lanes[lane]."))
    kinds = "\n".join(f"#define SLOT_{kind.name} {kind.value}" for kind in Kind)
    return f"""/* {_NOTICE} */
/* clang-format off */
#ifndef SLOT_HEADER_H
#define SLOT_HEADER_H

#define ETHERTYPE_SLOT {ETHERTYPE:#06x}
#define SLOT_VERSION {VERSION}
#define SLOT_LANES {LANES}
#define SLOT_RATE_UNIT_MBPS {RATE_UNIT_MBPS}
{kinds}

struct slot_lane {{
{_c_fields(LANE_FIELDS)}
}} __attribute__((packed));

struct slot_header {{
{_c_fields(FIELDS)}
\tstruct slot_lane lanes[SLOT_LANES];
{_c_fields(TAIL_FIELDS)}
}} __attribute__((packed));

_Static_assert(sizeof(struct slot_header) == {HEADER_BYTES}, "slot header");

/* The epoch of the slot that `lane` holds. */
static __always_inline __u16 slot_lane_epoch(const struct slot_header *header, __u32 lane)
{{
	return bpf_ntohs(header->epoch) + (lane < bpf_ntohs(header->first_lane));
}}

/* What a new header holds, before its sender fills it in. */
static __always_inline void slot_header_start(struct slot_header *header)
{{
	__u32 lane;

	__builtin_memset(header, 0, sizeof(*header));{starts}
	for (lane = 0; lane < SLOT_LANES; lane++) {{{lane_starts}
	}}
}}

#endif
"""


def outputs() -> dict[Path, str]:
    """Return the content of each generated file."""
    return {P4_HEADER: p4_header(), C_HEADER: c_header(), LUA: dissector(_NOTICE)}
