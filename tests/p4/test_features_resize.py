"""Packets that grow and shrink: what leaves is the headers that are emitted, and then what was not parsed."""

from __future__ import annotations

from tests.p4.conftest import Start
from tests.p4.resizing import frames, outputs


def test_what_is_emitted_replaces_what_was_parsed(start: Start) -> None:
    sent = list(frames(seed=1))
    batch = start("resize").send_batch(sent)
    for (port, packet), output in zip(sent, batch.outputs, strict=True):
        assert output == outputs(port, packet), packet.hex()
