"""Whether a switch still answers: a small question every second.

A link that is cut is silent, and TCP waits for minutes. Pings of HTTP/2 would show that, but a server that is
not configured for them, such as BMv2's, ends the connection after a few within five minutes
("too_many_pings"). Every server accepts a question of P4Runtime.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from machine.patience import patience

INTERVAL_S = patience(1.0)
ANSWER_S = patience(5.0)
"""Time limit of an answer."""
SILENCE_S = INTERVAL_S + ANSWER_S
"""How long it takes at most until silence is noticed."""
SLOW_S = patience(0.2)
"""TCP sends a lost packet again after 200 ms or later."""
LATEST = 5
"""Of how many questions the answers are judged together."""
MOST_SLOW = 2
"""How many of them may be slow: a busy machine delays one or two."""


@dataclass
class _Question:
    asked_s: float
    took_s: float | None = None

    @property
    def slow(self) -> bool:
        return (self.took_s if self.took_s is not None else time.monotonic() - self.asked_s) > SLOW_S


async def keep_asking(ask: Callable[[], Awaitable[None]], on_slow: Callable[[bool], None]) -> None:
    """Await `ask` anew every INTERVAL_S, also while earlier answers are due, until one raises. Raises that.

    `on_slow` gets True when more than MOST_SLOW of the LATEST answers took longer than SLOW_S, and False when
    none of them does any longer.
    """
    questions: deque[_Question] = deque(maxlen=LATEST)
    reported = False

    async def answered(question: _Question) -> None:
        await ask()
        question.took_s = time.monotonic() - question.asked_s

    try:
        async with asyncio.TaskGroup() as group:
            while True:
                questions.append(_Question(time.monotonic()))
                group.create_task(answered(questions[-1]))
                await asyncio.sleep(INTERVAL_S)
                slow = sum(question.slow for question in questions)
                if slow > MOST_SLOW or not slow:
                    if reported != bool(slow):
                        on_slow(bool(slow))
                    reported = bool(slow)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
