"""Ending in order when a signal asks for it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ending_once() -> Iterator[Callable[[], None]]:
    """Within, the first of SIGINT, SIGTERM and SIGHUP raises; none after it interrupts the clean-up.

    SIGINT raises KeyboardInterrupt, the others SystemExit. Yields a function that makes the signals have no
    effect from then on: call it when the work is done and only the clean-up is left.
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
    """Within, SIGINT, SIGTERM and SIGHUP are noted and interrupt nothing.

    Yields a function that waits until one has come; for the main thread only. A pipe tells it, into which
    the interpreter writes while it takes the signal: a handler in Python runs later, and not at all while a
    wait goes on that began in between.
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
