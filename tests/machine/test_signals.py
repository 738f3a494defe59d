"""Ending in order: the first signal raises, none after it interrupts."""

from __future__ import annotations

import signal

import pytest

from machine.signals import ending_once


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_only_the_first_signal_raises(number: signal.Signals, raised: type[BaseException]) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    cleaned = False
    with pytest.raises(raised) as ended, ending_once():
        try:
            signal.raise_signal(number)
            pytest.fail("the signal did not raise")
        finally:
            for again in before:
                signal.raise_signal(again)
            cleaned = True
    assert cleaned
    if raised is SystemExit:
        assert ended.value.args == (128 + number,)
    assert {each: signal.getsignal(each) for each in before} == before


def test_signals_after_the_work_have_no_effect() -> None:
    with ending_once() as ignore:
        ignore()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
