"""Compiling, opening and loading objects; programs without a network; errors a user can act on."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebpf import EbpfError, Object, compile_bpf, compile_cached
from ebpf.errors import describe, refusal

PACKET = bytes(range(64))
MARK = 8  # offset of mark in struct __sk_buff
SKB_SIZE = 192


@pytest.fixture
def basic(compiled: Callable[[str], Path]) -> Iterator[Object]:
    with Object.open(compiled("basic")) as loaded:
        loaded.load()
        yield loaded


def test_compile_error_names_file_and_line(tmp_path: Path) -> None:
    source = tmp_path / "bad.bpf.c"
    source.write_text("int f( { return 0; }\n")
    with pytest.raises(EbpfError, match=r"bad\.bpf\.c:1:\d+: error"):
        compile_bpf(source, tmp_path / "bad.o")
    assert not (tmp_path / "bad.o").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["bad.bpf.c"]


def test_defines_and_includes_reach_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "value.h").write_text("#define B 2\n")
    source = tmp_path / "sum.bpf.c"
    source.write_text('#include "value.h"\n_Static_assert(A + B == 42, "sum");\n')
    compile_bpf(source, tmp_path / "sum.o", includes=[tmp_path / "inc"], defines={"A": 40})
    with pytest.raises(EbpfError, match="sum"):
        compile_bpf(source, tmp_path / "sum.o", includes=[tmp_path / "inc"], defines={"A": 41})


def test_cache_depends_on_source_headers_and_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, header = tmp_path / "cached.bpf.c", tmp_path / "value.h"
    header.write_text("#define VALUE 1\n")
    source.write_text('#include "value.h"\nint value = VALUE;\n')
    first = compile_cached(source)
    made = first.stat().st_mtime_ns
    assert compile_cached(source) == first
    assert first.stat().st_mtime_ns == made
    header.write_text("#define VALUE 2\n")
    second = compile_cached(source)
    third = compile_cached(source, defines={"OTHER": 1})
    assert len({first, second, third}) == 3
    assert first.read_bytes() != second.read_bytes()


def test_missing_and_broken_object_are_named(tmp_path: Path) -> None:
    with pytest.raises(EbpfError, match=r"absent\.o: no such"):
        Object.open(tmp_path / "absent.o")
    (tmp_path / "text.o").write_text("not an object")
    with pytest.raises(EbpfError, match=r"text\.o: cannot be opened"):
        Object.open(tmp_path / "text.o")


@pytest.mark.root
def test_verifier_rejection_says_where_and_what_to_do(compiled: Callable[[str], Path]) -> None:
    with Object.open(compiled("rejected")) as careless, pytest.raises(EbpfError) as caught:
        careless.load()
    message = str(caught.value)
    assert "program 'careless' was rejected by the verifier: R" in message
    assert "invalid access to packet" in message
    assert "return *first" in message
    assert "remedy: compare the pointer" in message
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize(
    ("complaint", "remedy"),
    [
        ("R2 invalid mem access 'trusted_ptr_or_null_'", "check the result"),
        ("R1 invalid mem access 'scalar'", "lost track"),
        ("BPF program is too large. Processed 1000001 insn", "million"),
        ("combined stack size of 2 calls is 544. Too large", "per-CPU array"),
        ("invalid func unknown#195896080", "bpf_core_field_exists"),
        ("calling kernel function bpf_x is not allowed", "may not call"),
        ("math between pkt pointer and register with unbounded min value is not allowed", "bound the offset"),
    ],
)
def test_known_causes_have_a_remedy(complaint: str, remedy: str) -> None:
    log = f"libbpf: prog 'p': -- BEGIN PROG LOAD LOG --\n{complaint}\n-- END PROG LOAD LOG --\n"
    lines = str(describe("p.o: cannot be loaded", errno.EACCES, log)).splitlines()
    assert remedy in next(line for line in lines if line.startswith("remedy: "))


def test_long_verifier_log_is_cut_to_its_end() -> None:
    steps = "".join(f"{i}: (07) r1 += 1\n" for i in range(5000))
    log = (
        "libbpf: prog 'long': -- BEGIN PROG LOAD LOG --\n"
        f"{steps}; table[i] = 0; @ long.bpf.c:7\n5000: (7b) *(u64 *)(r1 +0) = r2\n"
        "R1 unbounded memory access\nprocessed 5001 insns (limit 1000000)\n-- END PROG LOAD LOG --\n"
    )
    error = describe("long.o: cannot be loaded", errno.EACCES, log)
    lines = str(error).splitlines()
    assert lines[1] == "program 'long' was rejected by the verifier: R1 unbounded memory access"
    assert lines[2] == "at: table[i] = 0; @ long.bpf.c:7"
    assert any(line.startswith("remedy: bound the offset") for line in lines)
    assert len(lines) < 30
    assert error.log == log


def test_a_refusal_names_the_kernel_and_where_to_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "6.1.0-test")
    log = "libbpf: prog 'p': -- BEGIN PROG LOAD LOG --\n; x = 1;\nR1 bad\n-- END PROG LOAD LOG --\n"
    message = str(describe("/root/p.o: cannot be loaded", errno.EACCES, log))
    assert "kernel: Linux 6.1.0-test" in message
    assert "report: to the maintainers (CONTRIBUTING.md)" in message
    told = refusal(errno.EACCES, log)
    assert message.endswith(told)
    assert "x = 1;" in told and "R1 bad" in told and "/root" not in told


def test_lines_of_a_refusal_are_short_enough_for_a_status_of_grpc() -> None:
    registers = f"R1=pkt({'x' * 5000})\n" * 100
    log = (
        f"libbpf: prog 'p': -- BEGIN PROG LOAD LOG --\n{registers}; x = 1;\nR1 bad\n-- END PROG LOAD LOG --\n"
    )
    told = refusal(errno.EACCES, log)
    assert len(told) < 5000
    assert "at: x = 1;" in told and "rejected by the verifier: R1 bad" in told


def test_what_is_no_refusal_of_the_verifier_is_not_to_be_reported() -> None:
    log = "libbpf: failed to create a map of /root/p.o\n"
    message, told = str(describe("p.o: cannot be loaded", errno.EPERM, log)), refusal(errno.EPERM, log)
    for text in (message, told):
        assert "report:" not in text
        assert "Operation not permitted" in text and "run as root" in text and "lockdown" in text
    assert "/root" not in told
    assert refusal(0, "") == ""


@pytest.mark.root
def test_run_returns_packet_and_context(basic: Object) -> None:
    context = bytearray(SKB_SIZE)
    struct.pack_into("=I", context, MARK, 5)
    run = basic.programs["set_first_byte"].test_run(PACKET, bytes(context))
    assert run.retval == 0
    assert run.data == b"\xaa" + PACKET[1:]
    assert struct.unpack_from("=I", run.ctx, MARK) == (6,)
    assert basic.programs["drop"].test_run(PACKET).retval == 2


@pytest.mark.root
def test_run_without_room_for_the_packet(basic: Object) -> None:
    assert basic.programs["drop"].test_run(PACKET, data_out_size=0).data == b""
    with pytest.raises(EbpfError) as caught:
        basic.programs["drop"].test_run(PACKET, data_out_size=10)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.root
def test_rodata_is_set_before_load_only(compiled: Callable[[str], Path]) -> None:
    with Object.open(compiled("basic")) as obj:
        with pytest.raises(EbpfError, match="4 bytes, not 2"):
            obj.set_rodata("increment", b"\1\0")
        with pytest.raises(EbpfError, match="no global variable 'decrement'"):
            obj.set_rodata("decrement", bytes(4))
        obj.set_rodata("increment", struct.pack("=I", 7))
        obj.load()
        obj.programs["count"].test_run(PACKET, repeat=3)
        values = obj.maps["counters"].lookup_cpus(bytes(4))
        assert sum(struct.unpack("=I", value)[0] for value in values) == 21
        with pytest.raises(EbpfError, match="once the object is loaded"):
            obj.set_rodata("increment", bytes(4))


@pytest.mark.root
def test_closed_object_fails_cleanly(compiled: Callable[[str], Path]) -> None:
    with Object.open(compiled("basic")) as obj:
        obj.load()
        program, table = obj.programs["drop"], obj.maps["table"]
    obj.close()
    with pytest.raises(EbpfError):
        program.test_run(PACKET)
    with pytest.raises(EbpfError):
        table[bytes(4)] = bytes(8)
