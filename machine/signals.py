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

    Yields a function that waits until one has come. A pipe tells it: `threading.Event` would wait for itself
    for ever where the signal comes while it looks at the event.
    """
    noted, note = os.pipe()
    os.set_blocking(note, False)

    def on_signal(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(note, b"\0")

    def wait() -> None:
        os.read(noted, 1)

    try:
        with _handled_by(on_signal):
            yield wait
    finally:
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
