"""P4Runtime's client arbitration for one device (spec 5), independent of gRPC.

Each role has its own primary: the live stream with the highest election id that the role has ever seen.
P4Runtime defines no scheme of role configurations, so every role has full access to the pipeline. The switch
accepts the default role and the roles that it was started with.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from finsy.proto import U128, p4r
from grpc import StatusCode

from softswitch.p4runtime.status import Refused, invalid, not_found

MAX_STREAMS = 64  # per role

Notification = tuple[Hashable, Any]  # a stream, and the StreamMessageResponse to send to it


@dataclass
class _Role:
    highest: int | None = None  # the highest election id ever seen
    streams: dict[Hashable, int | None] = field(default_factory=dict)

    def primary(self) -> Hashable | None:
        if self.highest is None:
            return None
        return next((stream for stream, id_ in self.streams.items() if id_ == self.highest), None)


class Arbitration:
    """The controllers of one device by role: the default role, "", and `roles`. A stream is any hashable."""

    def __init__(self, device_id: int, roles: Iterable[str] = ()) -> None:
        self._device_id = device_id
        self._roles = {name: _Role() for name in ("", *roles)}
        self._role_of: dict[Hashable, str] = {}

    def update(self, stream: Hashable, message: Any) -> list[Notification]:
        """Apply a MasterArbitrationUpdate from `stream`. Return the notifications to send.

        Raises Refused with the code that ends the stream:

        - NOT_FOUND for another device
        - PERMISSION_DENIED for an unknown role
        - INVALID_ARGUMENT for an election id in use, or a role configuration
        - FAILED_PRECONDITION for a change of device or role
        - RESOURCE_EXHAUSTED if the role has too many streams
        """
        known = stream in self._role_of
        if message.device_id != self._device_id:
            text = f"this is device {self._device_id}, not {message.device_id}"
            raise Refused(StatusCode.FAILED_PRECONDITION, text) if known else not_found(text)
        name = message.role.name
        if known and self._role_of[stream] != name:
            raise Refused(
                StatusCode.FAILED_PRECONDITION,
                f"this stream has role {self._role_of[stream]!r}; open another one for role {name!r}",
            )
        self.check_role(name)
        if message.role.HasField("config"):
            raise invalid(f"role {name!r}: role configurations are not supported; leave role.config unset")
        role = self._roles[name]
        election_id = U128.decode(message.election_id) if message.HasField("election_id") else None
        for other, taken in role.streams.items():
            if other != stream and election_id is not None and taken == election_id:
                raise invalid(f"election id {election_id} is already used by another controller ({other})")
        if not known and len(role.streams) >= MAX_STREAMS:
            raise Refused(StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} controllers are already connected")

        before = role.primary()
        self._role_of[stream] = name
        role.streams[stream] = election_id
        if election_id is not None and (role.highest is None or election_id >= role.highest):
            role.highest = election_id
        if role.primary() != before or before == stream:
            return self._notify(name, sorted(role.streams, key=lambda other: other == role.primary()))
        return self._notify(name, [stream])

    def close(self, stream: Hashable) -> list[Notification]:
        """Remove a stream that has ended. Return the notifications to send if it was the primary."""
        name = self._role_of.pop(stream, None)
        if name is None:
            return []
        role = self._roles[name]
        was_primary = role.primary() == stream
        del role.streams[stream]
        return self._notify(name, list(role.streams)) if was_primary else []

    def _notify(self, name: str, streams: list[Hashable]) -> list[Notification]:
        role = self._roles[name]
        primary = role.primary()
        notifications: list[Notification] = []
        for stream in streams:
            response = p4r.StreamMessageResponse()
            update = response.arbitration
            update.device_id = self._device_id
            if name:
                update.role.name = name
            if role.highest is not None:
                update.election_id.CopyFrom(U128.encode(role.highest))
            if stream == primary:
                code, text = StatusCode.OK, "you are primary"
            elif primary is not None:
                code, text = StatusCode.ALREADY_EXISTS, self._who(role)
            else:
                code, text = StatusCode.NOT_FOUND, self._who(role)
            update.status.code = code.value[0]
            update.status.message = text
            notifications.append((stream, response))
        return notifications

    def _who(self, role: _Role) -> str:
        if role.highest is None:
            return "no controller has become primary yet"
        primary = role.primary()
        if primary is None:
            return f"there is no primary: the last one, with election id {role.highest}, has gone"
        return f"the primary has election id {role.highest} ({primary})"

    def check_role(self, name: str) -> None:
        """Raise Refused (PERMISSION_DENIED) if the role is unknown."""
        if name not in self._roles:
            named = [repr(role) for role in self._roles if role]
            raise Refused(
                StatusCode.PERMISSION_DENIED,
                f"role {name!r} is unknown: this switch has the default role"
                f"{' and ' + ', '.join(named) if named else ' only'}; start it with --role to allow others",
            )

    def check_primary(self, request: Any) -> None:
        """Raise Refused unless a Write or SetForwardingPipelineConfig request comes from the primary."""
        self.check_role(request.role)
        role = self._roles[request.role]
        election_id = U128.decode(request.election_id) if request.HasField("election_id") else None
        if election_id is None or election_id != role.highest or role.primary() is None:
            mine = "no election id" if election_id is None else f"election id {election_id}"
            raise Refused(
                StatusCode.PERMISSION_DENIED, f"not primary: {self._who(role)}; this request has {mine}"
            )

    def is_primary(self, stream: Hashable) -> bool:
        """Return whether `stream` is the primary of its role."""
        name = self._role_of.get(stream)
        return name is not None and self._roles[name].primary() == stream

    def primaries(self) -> list[Hashable]:
        """Return the primary of each role. Packet-ins and digests go to them."""
        return [primary for role in self._roles.values() if (primary := role.primary()) is not None]
