"""Malformed, cut and random packets crash no target and wedge no port: afterwards a good packet passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from tests.p4.conftest import Start
from tests.p4.fabric import leaf_entries
from tests.p4.kinds import program
from tests.p4.live import live_switch
from tests.p4.packets import bits, ether
from tests.p4.random_fabric import fabric_packet
from tests.p4.random_packets import GENERATORS, tame
from tests.p4.targets import CPU_PORT, PORTS, Injected, Program, Target

LIMITS = {"netless": 3400}  # bytes that bpf_prog_test_run takes
LARGEST = 9000
NAMES = [*GENERATORS, "fabric"]


def assert_every_port_passes(target: Target) -> None:
    """Fences still pass through every port."""
    name = target.program.name
    for port in PORTS:
        outputs = target.send(port, target.program.fence(port, port, b"still alive"))
        assert [out for out, _ in outputs] == [port], f"{name}: port {port} is wedged"


def ethertypes(name: str) -> list[int]:
    """The EtherTypes that the program parses, found where its own packets have them."""
    rng = random.Random(0)
    generate = fabric_packet if name == "fabric" else GENERATORS[name]
    return sorted({int.from_bytes(generate(rng)[12:14], "big") for _ in range(60)})


def garbage(name: str, seed: int, largest: int, smallest: int = 0) -> Iterator[Injected]:
    """Noise of all sizes, noise behind EtherTypes that the program parses, its own packets cut anywhere."""
    rng = random.Random(f"{name} {seed}")
    generate = fabric_packet if name == "fabric" else GENERATORS[name]
    sizes = [*range(smallest, 70), 127, 128, 1500, 1514, largest - 1, largest]
    for size in sizes:
        yield rng.choice(PORTS), rng.randbytes(size)
    for ethertype in ethertypes(name):
        for size in (0, 1, 3, 19, 20, 21, 60, rng.randrange(1500), largest - 14):
            yield rng.choice(PORTS), ether(ethertype, rng.randbytes(size))
            yield rng.choice(PORTS), ether(ethertype, bytes(size))
            yield rng.choice(PORTS), ether(ethertype, b"\xff" * size)
    whole = generate(rng)
    for size in range(max(smallest, 14), min(len(whole), 120)):
        yield rng.choice(PORTS), whole[:size]


def tamed(name: str, packets: Iterator[Injected]) -> list[Injected]:
    return [(port, tame(name, packet)) for port, packet in packets]


@pytest.mark.parametrize("name", NAMES)
def test_garbage_leaves_every_port_working(start: Start, kind: str, name: str) -> None:
    target = start(name)
    with target.installed(*(leaf_entries() if name == "fabric" else [])):
        smallest = 1 if kind == "bmv2" else 0  # BMv2's packet stream knows no empty packets
        target.send_batch(tamed(name, garbage(name, 1, LIMITS.get(kind, LARGEST), smallest)))
        assert_every_port_passes(target)


def test_garbage_from_the_controller(start: Start) -> None:
    target, rng = start("cpu"), random.Random(3)
    for size in (17, 18, 30, 64, 200, 1500):
        target.send(CPU_PORT, bits([(rng.choice(PORTS), 9), (rng.getrandbits(7), 7)]) + rng.randbytes(size))
    assert_every_port_passes(target)


@pytest.fixture(scope="module")
def softswitch() -> Iterator[Callable[[Program], Target]]:
    """Puts a program on a softswitch with interfaces."""
    with live_switch("softswitch") as run:
        yield run


@pytest.mark.root
@pytest.mark.parametrize("name", ["parser", "checksum", "stack", "cpu", "fabric"])
def test_garbage_at_real_interfaces(softswitch: Callable[[Program], Target], name: str) -> None:
    target = softswitch(program(name))
    with target.installed(*(leaf_entries() if name == "fabric" else [])):
        target.send_batch(tamed(name, garbage(name, 2, LARGEST, smallest=14)))
        assert_every_port_passes(target)


@pytest.mark.root
@pytest.mark.parametrize("op", [8, 16, 8 | 4, 16 | 2])
def test_a_packet_that_never_ends_its_rounds(softswitch: Callable[[Program], Target], op: int) -> None:
    target = softswitch(program("replicate"))
    for _ in range(5):
        target.send(1, ether(0xA000, bits([(op, 8), (0, 16), (0xFFFF, 16)]) + b"round and round"))
    assert_every_port_passes(target)


@pytest.mark.root
def test_the_kernel_refuses_what_is_no_frame(softswitch: Callable[[Program], Target]) -> None:
    """Below 14 bytes nothing reaches a switch with interfaces."""
    target = softswitch(program("parser"))
    for size in (0, 1, 13):
        with pytest.raises(OSError, match=r"Invalid argument|Message too long|Destination address"):
            target.send(1, bytes(size))
    assert_every_port_passes(target)


def test_a_short_packet_is_dropped(start: Start) -> None:
    for size in (1, 6, 13):
        assert start("parser").send(1, bytes(size)) == []
