"""Send small UDP packets as fast as one core can, to measure packets per second.

`python -m benchmarks.blast ADDRESS PORT SECONDS SIZE`: SIZE is the length of a frame including its checksum,
at least 64. sendmmsg passes 256 packets at a time to the kernel, so Python's overhead is negligible. Prints
the number of packets sent.
"""

from __future__ import annotations

import ctypes as ct
import json
import socket
import sys
import time

_BATCH = 256
_HEADERS_AND_FCS = 14 + 20 + 8 + 4


class _IoVec(ct.Structure):
    _fields_ = (("base", ct.c_void_p), ("len", ct.c_size_t))


class _MsgHdr(ct.Structure):
    _fields_ = (
        ("name", ct.c_void_p),
        ("namelen", ct.c_uint32),
        ("iov", ct.POINTER(_IoVec)),
        ("iovlen", ct.c_size_t),
        ("control", ct.c_void_p),
        ("controllen", ct.c_size_t),
        ("flags", ct.c_int),
    )


class _MMsgHdr(ct.Structure):
    _fields_ = (("hdr", _MsgHdr), ("len", ct.c_uint))


def blast(address: str, port: int, seconds: float, frame_bytes: int) -> int:
    """Send for `seconds`; return how many packets the kernel accepted."""
    payload = ct.create_string_buffer(frame_bytes - _HEADERS_AND_FCS)
    vector = _IoVec(ct.cast(payload, ct.c_void_p), len(payload))
    messages = (_MMsgHdr * _BATCH)(
        *(_MMsgHdr(_MsgHdr(iov=ct.pointer(vector), iovlen=1)) for _ in range(_BATCH))
    )
    sendmmsg = ct.CDLL(None, use_errno=True).sendmmsg
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect((address, port))
        sent, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            sent += max(0, sendmmsg(sender.fileno(), messages, _BATCH, 0))
    return sent


if __name__ == "__main__":
    address, port, seconds, size = sys.argv[1:]
    print(json.dumps({"sent": blast(address, int(port), float(seconds), int(size))}))
