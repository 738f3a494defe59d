"""Orderly shutdown on signals."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ending_once() -> Iterator[Callable[[], None]]:
    """Raise on the first SIGINT, SIGTERM or SIGHUP in this context. Later ones do not interrupt clean-up.

    SIGINT raises KeyboardInterrupt, the others SystemExit. Yields a function that disables the signals: call
    it when only the clean-up is left.
    """

    def ignore() -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)

    def leave(number: int, _: FrameType | None) -> None:
        ignore()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    with _handled_by(leave):
        yield ignore


@contextlib.contextmanager
def noting_end() -> Iterator[Callable[[], None]]:
    """Note SIGINT, SIGTERM and SIGHUP in this context without interrupting anything.

    Yields a function, for the main thread only, that waits until one arrives. It reads a pipe that the
    interpreter writes to as it receives the signal. A Python handler would run later, and not at all during
    a wait that began in between.
    """
    noted, note = os.pipe()
    os.set_blocking(note, False)

    def wait() -> None:
        while os.read(noted, 1)[0] not in _ENDING:
            pass

    before = signal.set_wakeup_fd(note, warn_on_full_buffer=False)
    try:
        with _handled_by(lambda number, frame: None):
            yield wait
    finally:
        signal.set_wakeup_fd(before)
        os.close(noted)
        os.close(note)


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
