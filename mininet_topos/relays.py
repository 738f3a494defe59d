"""Links with a delay where the kernel has no netem: a process per link passes each frame on, later.

The process is `relay.c`, compiled when it is first needed. 300 Mbit/s without offloads are 25,000 full frames
per second and direction: in Python, one frame in and out takes longer than there is time. It has one
processor, and another one receives what it sends (`steer`).
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from controlplane.topology import Link
from machine import cache
from machine.errors import EntrainError, MissingTool
from machine.patience import patience
from machine.process import Child, launch
from machine.record import Record

SOURCE = Path(__file__).with_name("relay.c")
READY_TIMEOUT_S = patience(20.0)
_LATE_NS, _LATE_BINS = 10_000, 1000  # of relay.c
_DROPPED = struct.Struct("=8xQ")
_STATISTICS = struct.Struct(f"=2Q{_LATE_BINS}Q")


@dataclass(frozen=True)
class Passed:
    """What relays have done so far: frames passed on, frames dropped, and the processor time that it took.

    `late` counts the frames by how much later than due they left, in steps of 10 µs.
    """

    relays: int
    frames: int
    dropped: int
    cpu_s: float
    late: tuple[int, ...]

    def since(self, before: Passed) -> Passed:
        """Return what the same relays have done since `before`."""
        return Passed(
            self.relays,
            self.frames - before.frames,
            self.dropped - before.dropped,
            self.cpu_s - before.cpu_s,
            tuple(now - then for now, then in zip(self.late, before.late, strict=True)),
        )

    @property
    def late_ms_p99(self) -> float | None:
        """How much later than due 99 % of the frames left, at most; None: there was none."""
        seen, total = 0, sum(self.late)
        for index, count in enumerate(self.late, 1):
            seen += count
            if seen and seen >= 0.99 * total:
                return index * _LATE_NS / 1e6
        return None


@dataclass(frozen=True)
class Relay:
    """The relay of a link, and where it counts."""

    link: Link
    child: Child
    statistics: Path


def start(
    record: Record, link: Link, ends: tuple[str, str], directory: Path, *, netns: str | None = None
) -> Relay:
    """Start the relay of `link` between two interfaces of a namespace (None: this one).

    Call it in the main thread, whose end ends the process. It logs and counts in `directory`. Use
    `child.wait_ready` before sending.
    """
    name = _name(link)
    statistics = directory / f"relay-{name}.bin"
    delay_ns, jitter_ns = (round((each or 0) * 1e6) for each in (link.delay_ms, link.jitter_ms))
    seed = zlib.crc32(name.encode())
    inside = ["ip", "netns", "exec", netns] if netns else []
    processor = ["taskset", "--cpu-list", _processors(link)[0]]
    command = [*inside, *processor, compiled(), *ends, delay_ns, jitter_ns, seed, statistics]
    what = f"the relay of link {link.a}-{link.b}"
    log = directory / f"relay-{name}.log"
    return Relay(link, launch(record, what, [str(each) for each in command], log=log, tells=True), statistics)


def steer(link: Link, interface: str, inside: Sequence[str] = ()) -> None:
    """Let another processor than that of the relay receive what the relay of `link` sends to `interface`.

    Otherwise the relay's does it within each call that sends, and frames that are due wait for TCP. It is one
    processor, so that frames stay in order. `inside` is how a command begins that runs in the interface's
    namespace. Without CONFIG_RPS in the kernel, nothing is changed. Raises EntrainError where that fails.
    """
    own, other = _processors(link)
    if own == other:
        return
    file = f"/sys/class/net/{interface}/queues/rx-0/rps_cpus"
    # sysfs shows the interfaces of the namespace in which it was mounted
    script = f"umount --lazy /sys; mount -t sysfs none /sys; [ ! -e {file} ] || echo {_mask(other)} > {file}"
    command = [*inside, "unshare", "--mount", "sh", "-ec", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EntrainError(f"{interface}: cannot choose the processor that receives: {done.stderr.strip()}")


def _name(link: Link) -> str:
    return f"{link.a}-{link.a_port}-{link.b}-{link.b_port}"


def _processors(link: Link) -> tuple[int, int]:
    """Return the processor of a link's relay, and that of the receivers."""
    processors = sorted(os.sched_getaffinity(0))
    index = zlib.crc32(_name(link).encode())
    return processors[index % len(processors)], processors[(index + 1) % len(processors)]


def _mask(processor: int) -> str:
    """Return the mask of one processor as the kernel reads it: in hexadecimal groups of 32."""
    return ",".join([f"{1 << processor % 32:x}", *["0" * 8] * (processor // 32)])


def inner_ends(outer: str) -> tuple[str, str]:
    """Return names for the interfaces that a relay joins, by that of the link's end in the same namespace."""
    name = f"r{zlib.crc32(outer.encode()):08x}"  # an interface's name has 15 characters at most
    return f"{name}-a", f"{name}-b"


def passed(relays: list[Relay]) -> Passed:
    """Return what running relays have done so far."""
    frames = dropped = 0
    late = [0] * _LATE_BINS
    cpu_s = 0.0
    for each in relays:
        numbers = _STATISTICS.unpack(each.statistics.read_bytes())
        frames, dropped = frames + numbers[0], dropped + numbers[1]
        late = [one + other for one, other in zip(late, numbers[2:], strict=True)]
        used = psutil.Process(each.child.process.pid).cpu_times()
        cpu_s += used.user + used.system
    return Passed(len(relays), frames, dropped, cpu_s, tuple(late))


def dropped(relay: Relay) -> int:
    """Return how many frames a running relay has dropped so far, in both directions."""
    with relay.statistics.open("rb") as file:
        return _DROPPED.unpack(file.read(_DROPPED.size))[0]  # type: ignore[no-any-return]


def compiler() -> str:
    """Return the C compiler: $CC, cc or clang. Raises MissingTool without one."""
    for name in (os.environ.get("CC"), "cc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise MissingTool(
        "a link's delay_ms needs the qdisc netem, which this kernel lacks (CONFIG_NET_SCH_NETEM), or a C "
        "compiler for the relay in its place: install one (Debian: apt-get install gcc), or set CC"
    )


def compiled() -> Path:
    """Return the compiled relay, from a cache.

    Raises MissingTool without a compiler, and EntrainError with the compiler's message.
    """
    return cache.program(SOURCE, [compiler(), "-O2", "-Wall"])
