"""Ending in order: the first signal raises, none after it interrupts."""

from __future__ import annotations

import signal
import sys
import threading

import pytest
from pydantic import BaseModel, field_serializer
from pydantic_core import PydanticSerializationError

from machine.signals import AGAIN_S, ending_once, handled_by, noting_end


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


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_is_not_lost_where_python_drops_exceptions(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    class Thing:
        def __del__(self) -> None:
            signal.raise_signal(number)

    before = sys.unraisablehook
    with pytest.raises(raised), ending_once():
        Thing()
        threading.Event().wait(20)
        pytest.fail("the signal is lost")
    assert sys.unraisablehook is before


def test_a_signal_that_was_dropped_at_the_end_ends_this_context_and_no_other() -> None:
    class Thing:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    late: list[int] = []
    with handled_by(lambda number, _: late.append(number)):
        with pytest.raises(KeyboardInterrupt), ending_once():
            Thing()
        threading.Event().wait(5 * AGAIN_S)
    assert late == []


class Interrupted(BaseModel):
    """A signal arrives while pydantic writes it as JSON."""

    value: int = 0

    @field_serializer("value")
    def _written(self, value: int) -> int:
        signal.raise_signal(signal.SIGINT)
        return value


def test_a_signal_stays_one_whatever_a_library_makes_of_it() -> None:
    with pytest.raises(PydanticSerializationError):
        Interrupted().model_dump_json()
    with pytest.raises(KeyboardInterrupt), ending_once():
        Interrupted().model_dump_json()


def test_signals_after_the_work_have_no_effect() -> None:
    with ending_once() as ignore:
        ignore()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_came_before_is_not_waited_for(number: signal.Signals) -> None:
    with noting_end() as until_ended:
        signal.raise_signal(number)
        until_ended()


def test_a_signal_ends_the_wait_whenever_it_comes() -> None:
    """Also in the moment in which the wait begins."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    with noting_end() as until_ended:
        for delay_us in range(0, 500, 2):
            sender = threading.Timer(delay_us / 1e6, signal.pthread_kill, (main_thread, signal.SIGTERM))
            sender.start()
            until_ended()
            sender.join()
