"""Whatever layout CONTRIBUTING.md allows, the generated code of all languages agrees to the bit."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from wire import DEFINITION
from wire.definition import WIDTHS

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("fields", "lane", "tail")
HEADERS = 4
"""Number of headers with random values per layout."""

READER = """
import json, sys
from wire import scapy_layer
from wire.slot_header import Kind, Lane, SlotHeader

told = []
for given in json.load(sys.stdin):
    lanes = tuple(Lane(*lane) for lane in given.pop("lanes"))
    header = SlotHeader(**{**given, "kind": Kind(given["kind"])}, lanes=lanes)
    packed = header.pack()
    assert SlotHeader.unpack(packed) == header
    packet = scapy_layer.SlotHeader(packed)
    names = [field.name for field in packet.fields_desc if field.name != "lanes"]
    lane_names = [field.name for field in packet.lanes[0].fields_desc]
    assert bytes(packet) == packed
    told.append({
        "packed": packed.hex(),
        "header": {name: getattr(packet, name) for name in names},
        "lanes": [{name: getattr(lane, name) for name in lane_names} for lane in packet.lanes],
    })
start = [SlotHeader().pack().hex(), bytes(scapy_layer.SlotHeader()).hex()]
print(json.dumps({"headers": told, "start": start}))
"""

C = """
#include <arpa/inet.h>
#include <endian.h>
#include <stdint.h>
#include <stdio.h>
typedef uint8_t __u8; typedef uint16_t __u16, __be16; typedef uint32_t __u32, __be32; typedef uint64_t __be64;
#define bpf_htons htons
#define bpf_htonl htonl
#define bpf_ntohs ntohs
#define bpf_cpu_to_be64 htobe64
#include "slot_header.h"

static unsigned long long number(const void *bytes, int count)
{{
    unsigned long long value = 0;
    for (int i = 0; i < count; i++) value = value << 8 | ((const __u8 *)bytes)[i];
    return value;
}}
int main(void)
{{
    struct slot_header header;
    slot_header_start(&header);
    fwrite(&header, sizeof(header), 1, stderr);
    while (fread(&header, sizeof(header), 1, stdin) == 1) {{
        {header}
        for (int i = 0; i < SLOT_LANES; i++) {{
            {lane}
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Field:
    """A field of a layout."""

    name: str
    bits: int
    start: int


@dataclass(frozen=True)
class Layout:
    """A definition: its tables of fields, and the number of lanes."""

    tables: Mapping[str, tuple[Field, ...]]
    lanes: int

    def toml(self) -> str:
        """The file of this layout."""
        text = DEFINITION.read_text(encoding="utf-8").partition("[[fields]]")[0]
        text = re.sub(r"(?m)^lanes = \d+", f"lanes = {self.lanes}", text)
        for table in TABLES:
            for field in self.tables[table]:
                text += f'[[{table}]]\nname = "{field.name}"\nbits = {field.bits}\nstart = {field.start}\n'
                text += 'doc = "größer als \\\\n"\n'
        return text

    def packed(self, header: Mapping[str, int], lanes: Iterable[Mapping[str, int]]) -> bytes:
        """The bytes of a header with these values."""

        def bits(table: str, values: Mapping[str, int]) -> str:
            return "".join(f"{values[field.name]:0{field.bits}b}" for field in self.tables[table])

        parts = [bits("fields", header), *(bits("lane", lane) for lane in lanes), bits("tail", header)]
        text = "".join(parts)
        return int(text, 2).to_bytes(len(text) // 8, "big")


def shipped() -> dict[str, tuple[Field, ...]]:
    """The fields that programs need, as they are."""
    defined = tomllib.loads(DEFINITION.read_text(encoding="utf-8"))
    return {
        table: tuple(Field(field["name"], field["bits"], field.get("start", 0)) for field in defined[table])
        for table in TABLES
    }


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """The shipped layout with fields of all widths and starts added anywhere behind version and kind."""
    tables, number = shipped(), 0
    for table in TABLES:
        fields = list(tables[table])
        for bits in draw(st.lists(st.sampled_from(WIDTHS), max_size=5)):
            added = []
            for _ in range(2 if bits == 4 else 1):
                number += 1
                added.append(Field(f"extra_{number}", bits, draw(st.integers(0, 2**bits - 1))))
            places = [at for at in range(2 * (table == "fields"), len(fields) + 1) if not _splits(fields, at)]
            at = draw(st.sampled_from(places))
            fields[at:at] = added
        tables[table] = tuple(fields)
    return Layout(tables, draw(st.integers(1, 16)))


def _splits(fields: list[Field], at: int) -> bool:
    return sum(field.bits for field in fields[:at]) % 8 != 0


def generated(layout: Layout, place: Path) -> Path:
    """Take the steps of CONTRIBUTING.md in a copy of the package: definition, `python -m wire`, codec."""
    shutil.copytree(ROOT / "wire", place / "wire", ignore=shutil.ignore_patterns("__pycache__"))
    for directory in ("p4src/shared", "hostbpf/bpf"):
        (place / directory).mkdir(parents=True)
    (place / "wire/slot_header.toml").write_text(layout.toml(), encoding="utf-8")
    done = python(place, "-m", "wire")
    assert done.returncode == 0, done.stderr
    codec = place / "wire/slot_header.py"
    text = codec.read_text(encoding="utf-8")
    for begin, end, names in (
        ("    delta: int = 0\n", "    headroom: int = MAX_U32\n", layout.tables["lane"]),
        ("    hops: int = 0\n", "    first_lane: int = 0\n", layout.tables["fields"][2:]),
        ("    base_slot: int = 0\n", "    bytes_onward: int = 0\n", layout.tables["tail"]),
    ):
        lines = [f"    {field.name}: int = {field.start}\n" for field in names if field.name != "lowers"]
        before, _, rest = text.partition(begin)
        text = before + "".join(lines).replace("amount:", "delta:") + rest.partition(end)[2]
    codec.write_text(text, encoding="utf-8")
    return place


def python(place: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with the copy of `wire`, and our other packages."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=place, env=environment, input=given, capture_output=True, text=True
    )


def draw_header(layout: Layout, rng: random.Random) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """Random values: of the header, with `lowers`, and of each lane."""
    version, _ = layout.tables["fields"][:2]
    own = [field for table in ("fields", "tail") for field in layout.tables[table]]
    header = {field.name: rng.randrange(1 << field.bits) for field in own}
    header |= {"version": version.start, "kind": rng.randint(1, 3), "next_ethertype": 0x88B6}
    header |= {"first_lane": rng.randrange(layout.lanes), "lowers": rng.randrange(1 << layout.lanes)}
    lanes = [
        {field.name: rng.randrange(1, 1 << field.bits) for field in layout.tables["lane"]}
        for _ in range(layout.lanes)
    ]
    return header, lanes


def read_by_p4(text: str, data: bytes, lanes: int) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Take `data` apart as the declared headers say."""
    bits, at = f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}", 0

    def extract(header: str) -> dict[str, int]:
        nonlocal at
        body = re.search(rf"header {header} {{(.*?)}}", text, re.DOTALL)
        assert body
        values = {}
        for width, name in re.findall(r"bit<(\d+)> (\w+);", body[1]):
            values[name] = int(bits[at : at + int(width)], 2)
            at += int(width)
        return values

    header = extract("slot_t")
    told = [extract("lane_t") for _ in range(lanes)]
    header |= extract("slot_tail_t")
    assert at == len(bits)
    return header, told


def read_by_c(layout: Layout, place: Path, data: bytes) -> tuple[bytes, list[int]]:
    """The bytes of a new header, and the values of all headers in `data`, as a C program has them."""

    def prints(table: str, struct: str) -> str:
        fields, lines = iter(layout.tables[table]), []
        for field in fields:
            if field.bits == 4:
                member = f"{struct}{field.name}_{next(fields).name}"
                lines.append(f'printf("%d %d ", {member} >> 4, {member} & 15);')
            else:
                lines.append(f'printf("%llu ", number(&{struct}{field.name}, {field.bits // 8}));')
        return "\n".join(lines)

    lane, header = prints("lane", "header.lanes[i]."), prints("fields", "header.") + prints("tail", "header.")
    (place / "read.c").write_text(C.format(header=header, lane=lane), encoding="utf-8")
    compiler = shutil.which("cc") or "clang"
    include = f"-I{place / 'hostbpf/bpf'}"
    command = [
        compiler,
        "-Werror",
        "-Wno-unused-function",
        include,
        "-o",
        str(place / "read"),
        str(place / "read.c"),
    ]
    subprocess.run(command, check=True)
    done = subprocess.run([str(place / "read")], input=data, capture_output=True, check=True)
    return done.stderr, [int(word) for word in done.stdout.split()]


def shown_by_tshark(layout: Layout, place: Path, packed: list[bytes]) -> list[dict[str, list[int]]]:
    """The fields of each header, as Wireshark's dissector shows them."""
    pcap = place / "headers.pcap"
    wrpcap(str(pcap), [Ether(type=0x88B5) / data for data in packed])
    own = [field.name for table in ("fields", "tail") for field in layout.tables[table]]
    names = [*own, *(f"lane.{field.name}" for field in layout.tables["lane"])]
    command = [
        "tshark",
        "-X",
        f"lua_script:{place / 'wire/slot_header.lua'}",
        "-r",
        str(pcap),
        "-T",
        "fields",
    ]
    for name in names:
        command += ["-e", f"entrain.{name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    rows = [line.split("\t") for line in done.stdout.rstrip("\n").split("\n")]
    return [
        {name: [int(word, 0) for word in cell.split(",")] for name, cell in zip(names, row, strict=True)}
        for row in rows
    ]


@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])  # a layout takes seconds
@given(layout=layouts(), seed=st.integers(0, 2**32))
def test_all_languages_read_the_same_from_any_layout(layout: Layout, seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = generated(layout, Path(directory))
        rng = random.Random(seed)
        drawn = [draw_header(layout, rng) for _ in range(HEADERS)]
        packed = [layout.packed(*one) for one in drawn]
        started = ({f.name: f.start for t in ("fields", "tail") for f in layout.tables[t]},)
        start = layout.packed(*started, [{f.name: f.start for f in layout.tables["lane"]}] * layout.lanes)

        given = []
        for header, lanes in drawn:
            signed = [
                [
                    (-1 if header["lowers"] >> n & 1 else 1) * v if k == "amount" else v
                    for k, v in lane.items()
                ]
                for n, lane in enumerate(lanes)
            ]
            given.append({**{k: v for k, v in header.items() if k != "lowers"}, "lanes": signed})
        done = python(place, "-c", READER, given=json.dumps(given))
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["start"] == [start.hex(), start.hex()]
        for (header, lanes), data, one in zip(drawn, packed, told["headers"], strict=True):
            assert one == {"packed": data.hex(), "header": header, "lanes": lanes}

        p4 = (place / "p4src/shared/slot_header.p4").read_text(encoding="utf-8")
        assert [read_by_p4(p4, data, layout.lanes) for data in packed] == drawn

        new, values = read_by_c(layout, place, b"".join(packed))
        assert new == start
        assert values == [v for header, lanes in drawn for one in (header, *lanes) for v in one.values()]

        if shutil.which("tshark"):
            for (header, lanes), row in zip(drawn, shown_by_tshark(layout, place, packed), strict=True):
                wanted = {name: [value] for name, value in header.items()}
                wanted |= {f"lane.{name}": [lane[name] for lane in lanes] for name in lanes[0]}
                assert row == wanted


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'name = "hops"\nbits = 8',
            'name = "hops"\nbits = 12',
            "[[fields]] 3: hops: bits is 12; give 8, 16,",
        ),
        (
            'name = "hops"\nbits = 8',
            'name = "hops"\nbits = 4',
            "[[fields]]: hops has 4 bits; the field after it",
        ),
        ('name = "hops"', 'name = "state-of"', "[[fields]] 3, name: must be a letter"),
        ('name = "hops"', 'name = "end"', "[[fields]] 3: end: is a word of P4, C, Lua, Python or Scapy"),
        ('name = "hops"', 'name = "flow"', "flow: two fields have this name"),
        ('name = "hops"', 'name = "version_kind"', "version_kind: two fields have this name, or a pair"),
        ("bits = 8\n", "bits = 8\nstart = 256\n", "[[fields]] 3: hops: start is 256; give what fits 8 bits"),
        ("bits = 8\n", 'bits = "8"\n', '[[fields]] 3, bits: must be a whole number, is "8"'),
        ("bits = 8\n", "bit = 8\n", "[[fields]] 3, bit: unknown key; did you mean bits?"),
        ('doc = "switches', 'doc = "*/ switches', "[[fields]] 3: hops: doc becomes a comment of one line"),
        (
            'name = "epoch"\nbits = 16',
            'name = "epoch"\nbits = 32',
            "[[fields]]: epoch has 32 bits; programs read",
        ),
        ('name = "amount"', 'name = "change"', "[[lane]]: amount is missing; programs read"),
        ("start = 1\n", "start = 9\n", "kind: its start must be one of [kinds]"),
        ("lanes = 10", "lanes = 17", "lanes is 17; lowers has 16 bits, one for each; widen it"),
        ("lanes = 10", "", "lanes: this key is missing"),
    ],
)
def test_what_cannot_be_generated_is_refused_by_the_fields_name(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    shutil.copytree(ROOT / "wire", tmp_path / "wire", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "wire/slot_header.toml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    done = python(tmp_path, "-m", "wire")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == [tmp_path / "wire"], "nothing is written"
