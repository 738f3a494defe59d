"""Digests: which are enabled, and bundling of their messages into lists (spec 9.8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from finsy.proto import p4r
from grpc import StatusCode

from softswitch.p4runtime.p4info import Digest, P4Info, encode
from softswitch.p4runtime.status import Refused, invalid, not_found

DEFAULT_LIST = 1000  # messages per list if the controller sets no limit

Values = tuple[int, ...]


@dataclass
class _Learning:
    """One enabled digest: messages that wait to be sent, and lists not yet acknowledged."""

    digest: Digest
    timeout_s: float
    list_size: int
    ack_timeout_s: float
    waiting: dict[Values, None] = field(default_factory=dict)
    sent: dict[int, tuple[float, frozenset[Values]]] = field(default_factory=dict)  # by list id
    timer: asyncio.TimerHandle | None = None

    def is_known(self, values: Values, now: float) -> bool:
        """Return whether this message already waits, or was sent and may still be acknowledged."""
        self.sent = {id_: s for id_, s in self.sent.items() if now - s[0] < self.ack_timeout_s}
        return values in self.waiting or any(values in sent for _, sent in self.sent.values())


class Digests:
    """The digests of one program. `send` sends a StreamMessageResponse to the primaries."""

    def __init__(self, info: P4Info, send: Callable[[Any], None]) -> None:
        self._info = info
        self._send = send
        self._on: dict[int, _Learning] = {}
        self._configs: dict[int, Any] = {}
        self._next_list = 1

    def write(self, kind: int, message: Any) -> None:
        """Enable a digest (INSERT), disable it (DELETE), or change how its messages are bundled (MODIFY)."""
        digest = self._info.digests.get(message.digest_id)
        if digest is None:
            raise invalid(f"no digest has id {message.digest_id:#x}")
        on = self._on.get(digest.id)
        if kind == p4r.Update.INSERT and on is not None:
            raise Refused(StatusCode.ALREADY_EXISTS, f"digest {digest.name} is already on")
        if kind != p4r.Update.INSERT and on is None:
            raise not_found(f"digest {digest.name} is not on")
        if on is not None and on.timer is not None:
            on.timer.cancel()
        if kind == p4r.Update.DELETE:
            del self._on[digest.id], self._configs[digest.id]
            return
        config = message.config
        if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
            raise invalid(f"digest {digest.name}: timeouts and sizes must not be negative")
        self._on[digest.id] = learning = _Learning(
            digest,
            config.max_timeout_ns / 1e9,
            config.max_list_size or DEFAULT_LIST,
            config.ack_timeout_ns / 1e9,
        )
        self._configs[digest.id] = p4r.DigestEntry(digest_id=digest.id, config=config)
        if on is not None:
            learning.waiting, learning.sent = on.waiting, on.sent
            if learning.waiting:
                self._flush(learning)

    def read(self, message: Any) -> Iterator[Any]:
        """Yield the configuration of one enabled digest, or of all."""
        id_ = message.digest_id
        if id_ and id_ not in self._info.digests:
            raise invalid(f"no digest has id {id_:#x}")
        for digest_id, config in self._configs.items():
            if id_ in (0, digest_id):
                yield p4r.Entity(digest_entry=config)

    def learned(self, name: str, values: Values) -> None:
        """Queue a message from the datapath. Needs a running event loop if the controller set a timeout."""
        digest = self._info.digest_named.get(name)
        on = self._on.get(digest.id) if digest is not None else None
        if on is None or on.is_known(values, time.monotonic()):
            return
        on.waiting[values] = None
        if not on.timeout_s or len(on.waiting) >= on.list_size:
            self._flush(on)
        elif on.timer is None:
            on.timer = asyncio.get_running_loop().call_later(on.timeout_s, self._flush, on)

    def _flush(self, on: _Learning) -> None:
        if on.timer is not None:
            on.timer.cancel()
            on.timer = None
        response = p4r.StreamMessageResponse()
        message = response.digest
        message.digest_id, message.list_id = on.digest.id, self._next_list
        message.timestamp = time.time_ns()
        for values in on.waiting:
            _fill(on.digest, values, message.data.add())
        if on.ack_timeout_s:
            on.sent[self._next_list] = (time.monotonic(), frozenset(on.waiting))
        self._next_list += 1
        on.waiting = {}
        self._send(response)

    def acknowledged(self, message: Any) -> None:
        """Apply a DigestListAck. Raises Refused (INVALID_ARGUMENT) if P4Info has no such digest."""
        if message.digest_id not in self._info.digests:
            raise invalid(f"no digest has id {message.digest_id:#x}")
        on = self._on.get(message.digest_id)
        if on is not None:
            on.sent.pop(message.list_id, None)

    def close(self) -> None:
        """Stop the timers."""
        for on in self._on.values():
            if on.timer is not None:
                on.timer.cancel()


def _fill(digest: Digest, values: Values, message: Any) -> None:
    match digest.kind:
        case "struct":
            members = message.struct.members
        case "tuple":
            members = message.tuple.members
        case _:
            message.bitstring = encode(values[0])
            return
    for value in values:
        members.add(bitstring=encode(value))
