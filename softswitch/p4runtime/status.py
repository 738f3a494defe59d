"""P4Runtime's errors: refused updates, and the status of a batch (spec 12, 13.3)."""

from __future__ import annotations

from collections.abc import Sequence

from finsy.proto import p4r, rpc_status
from google.protobuf import any_pb2
from grpc import StatusCode

SPACE = "softswitch"
DETAILS_KEY = "grpc-status-details-bin"
MOST_READ = 1 << 20  # entities per read request, which are all in memory before the first is sent
SEE_LOG = "see this switch's log for the reason (--log-file, --log-console)"
MAX_DETAILS = 5500
"""Bytes of status details. Clients accept 8 KiB of trailers by default, and base64 adds a third."""


class Refused(Exception):
    """A request or update is refused with `code`, and a message that says what is wrong."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> Refused:
    """Return an INVALID_ARGUMENT error."""
    return Refused(StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> Refused:
    """Return a NOT_FOUND error."""
    return Refused(StatusCode.NOT_FOUND, message)


def internal() -> Refused:
    """Return an INTERNAL error, for what has been logged."""
    return Refused(StatusCode.INTERNAL, f"internal error; {SEE_LOG}")


def _details(errors: Sequence[Refused | None], message_limit: int) -> list[any_pb2.Any]:
    details = []
    for error in errors:
        detail = any_pb2.Any()
        if error is None:
            detail.Pack(p4r.Error())
        else:
            detail.Pack(
                p4r.Error(
                    canonical_code=error.code.value[0], message=error.message[:message_limit], space=SPACE
                )
            )
        details.append(detail)
    return details


def batch_status(errors: Sequence[Refused | None]) -> tuple[str, bytes]:
    """Return the message and the serialized google.rpc.Status of a batch, one p4.v1.Error per update.

    If the trailers would exceed what clients accept by default, error messages are cut, and then the details
    left out. The status message itself always names the first failed update.
    """
    failed = [(index, error) for index, error in enumerate(errors) if error is not None]
    index, first = failed[0]
    message = (
        f"{len(failed)} of {len(errors)} updates failed; update {index}: {first.code.name}: {first.message}"
    )
    status = rpc_status.Status(code=StatusCode.UNKNOWN.value[0], message=message[:1000])
    for limit in (500, 60, 0):
        del status.details[:]
        status.details.extend(_details(errors, limit))
        if status.ByteSize() <= MAX_DETAILS:
            break
    else:
        del status.details[:]
    return status.message, status.SerializeToString()
