"""Random loss on links, in eBPF, without netem. An offloaded packet is lost as a whole."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ebpf import Object, compile_cached

SOURCE = Path(__file__).parent / "bpf" / "loss.bpf.c"


@dataclass(frozen=True)
class Losses:
    """Packet counts of all lossy interfaces so far."""

    passed: int
    lost: int


class Loss:
    """Active loss. `count` returns its effect."""

    def __init__(self, obj: Object) -> None:
        self._obj = obj

    def count(self) -> Losses:
        """Return the packet counts so far."""
        values = self._obj.maps[".bss"][bytes(4)]
        places = (self._obj.variable("passed").offset, self._obj.variable("lost").offset)
        passed, lost = (struct.unpack_from("=Q", values, place)[0] for place in places)
        return Losses(passed, lost)


@contextlib.contextmanager
def lossy(ifindexes: Iterable[int], probability: float, *, netns: str | None = None) -> Iterator[Loss]:
    """Lose each packet that leaves these interfaces with `probability` (0 to 1), in this context.

    The loss ends with the process at the latest. Raises EbpfError if it cannot attach.
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability {probability}: must be from 0 to 1")
    with Object.open(compile_cached(SOURCE)) as obj, contextlib.ExitStack() as stack:
        obj.set_rodata("threshold", struct.pack("=I", min(round(probability * 2**32), 2**32 - 1)))
        obj.load()
        for ifindex in ifindexes:
            stack.enter_context(obj.programs["lose"].attach_interface(ifindex, "egress", netns))
        yield Loss(obj)
