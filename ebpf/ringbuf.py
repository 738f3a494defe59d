"""Read BPF ring buffers."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Callable

from ebpf import libbpf
from ebpf.errors import describe
from ebpf.maps import Map


class RingBuffer:
    """Calls `callback` with each record of ring-buffer map `m`; `fd` is for epoll or asyncio."""

    def __init__(self, m: Map, callback: Callable[[bytes], None]) -> None:
        self._error: BaseException | None = None

        def consume(_: int, data: int, size: int) -> int:
            try:
                callback(ct.string_at(data, size))
            except BaseException as error:
                self._error = error
                return -1
            return 0

        self._consume = libbpf.RingBufferFn(consume)  # must outlive the buffer
        self._pointer = libbpf.lib().ring_buffer__new(m.fd, self._consume, None, None)
        if not self._pointer:
            raise describe(f"map {m.name}: not usable as a ring buffer", ct.get_errno())
        self.fd: int = libbpf.lib().ring_buffer__epoll_fd(self._pointer)

    def poll(self, timeout_ms: int = -1) -> int:
        """Wait at most `timeout_ms` (-1: forever) for records, deliver them, and return their number.

        An exception from the callback is raised here, and the records after it stay.
        """
        return self._checked(libbpf.lib().ring_buffer__poll(self._pointer, timeout_ms))

    def consume(self) -> int:
        """Deliver the available records without waiting, and return their number."""
        return self._checked(libbpf.lib().ring_buffer__consume(self._pointer))

    def _checked(self, result: int) -> int:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if result < 0:
            raise describe("reading a ring buffer", -result)
        return result

    def close(self) -> None:
        """Free the reader. A second call does nothing."""
        if self._pointer:
            libbpf.lib().ring_buffer__free(self._pointer)
            self._pointer = None
