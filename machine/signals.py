"""Orderly shutdown on signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | signal.Handlers

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


AGAIN_S = 0.01
"""Time after which a signal is sent again if Python dropped the exception that its handler raised."""


@contextlib.contextmanager
def ending_once() -> Iterator[Callable[[], None]]:
    """Raise on the first SIGINT, SIGTERM or SIGHUP in this context. Later ones do not interrupt clean-up.

    SIGINT raises KeyboardInterrupt, the others SystemExit. Some code does not pass these on. In a destructor
    or a callback from C, Python drops them; the signal is then sent again. A library may raise another
    exception in their place, as pydantic does in a serializer; the context then ends with the signal's own.

    Yields a function that disables the signals: call it when only the clean-up is left.
    """
    raised: BaseException | None = None
    ended_by = signal.SIGINT
    dropping = False
    again: list[threading.Timer] = []

    def install(handler: Handler) -> None:
        for number in _ENDING:
            signal.signal(number, handler)

    def ignore() -> None:
        install(signal.SIG_IGN)

    def send_again() -> None:
        again.append(threading.Timer(AGAIN_S, os.kill, (os.getpid(), ended_by)))
        again[-1].start()

    def leave(number: int, _: FrameType | None) -> None:
        nonlocal raised, ended_by
        ended_by = signal.Signals(number)
        if dropping:  # an exception would be dropped, too
            send_again()
            return
        ignore()
        raised = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        raise raised

    def drop(dropped: sys.UnraisableHookArgs) -> None:
        nonlocal dropping
        if raised is None or dropped.exc_value is not raised:
            drop_before(dropped)
            return
        dropping = True
        install(leave)
        send_again()
        dropping = False

    drop_before, sys.unraisablehook = sys.unraisablehook, drop
    try:
        with handled_by(leave):
            try:
                yield ignore
            finally:
                for timer in again:  # whoever comes after this context is not to get the signal
                    timer.cancel()
                    timer.join()
        if raised is not None:  # dropped, and the context has ended before it was sent again
            raise raised
    except BaseException as error:
        if raised is None or error is raised:
            raise
        raise raised from None
    finally:
        sys.unraisablehook = drop_before


@contextlib.contextmanager
def noting_end() -> Iterator[Callable[[], signal.Signals]]:
    """Note SIGINT, SIGTERM and SIGHUP in this context without interrupting anything.

    Yields a function, for the main thread only, that waits until one arrives, and returns it. It reads a pipe
    that the interpreter writes to as it receives the signal. A Python handler would run later, and not at all
    during a wait that began in between.
    """
    noted, note = os.pipe()
    os.set_blocking(note, False)

    def wait() -> signal.Signals:
        while (number := os.read(noted, 1)[0]) not in _ENDING:
            pass
        return signal.Signals(number)

    before = signal.set_wakeup_fd(note, warn_on_full_buffer=False)
    try:
        with handled_by(lambda number, frame: None):
            yield wait
    finally:
        signal.set_wakeup_fd(before)
        os.close(noted)
        os.close(note)


@contextlib.contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals] = _ENDING
) -> Iterator[None]:
    """Let `handler` handle the signals `numbers` in this context."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
