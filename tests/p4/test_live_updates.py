"""Tables change under traffic: a packet meets an entry as it was before a change or as it is after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from finsy import P4TableEntry

from tests.p4.kinds import program
from tests.p4.live import Live, live_switch
from tests.p4.test_features_match import entry, packet, results

pytestmark = pytest.mark.root

PROBE = {"exact": 7, "lpm": 0x0A000001, "ternary": 0x0A000001, "range": 6, "optional": 3, "address": 1}
MATCHES: dict[str, Any] = {
    "exact_table": {"exact": 7},
    "lpm_table": {"lpm": (0x0A000000, 8)},
    "ternary_table": {"ternary": (0x0A000000, 0xFF000000)},
    "range_table": {"range": (5, 9)},
    "optional_table": {"optional": 3},
    "address_table": {"address": (0, 1)},
}
MISSES: dict[str, Callable[[int], Any]] = {
    "exact_table": lambda number: {"exact": 1000 + number},
    "lpm_table": lambda number: {"lpm": (0x0B000000 + (number << 16), 16)},
    "ternary_table": lambda number: {"ternary": (0x0B000000 + number, 0xFFFFFFFF)},
    "range_table": lambda number: {"range": (100 + number, 200 + number)},
    "optional_table": lambda number: {"optional": 1000 + number},
    "address_table": lambda number: {"address": (number + 1 << 112, 16)},
}
BY_PRIORITY = ("ternary_table", "range_table", "optional_table")


@pytest.fixture(scope="module")
def switch() -> Iterator[Live]:
    """The program of all match kinds on a softswitch with interfaces."""
    with live_switch("softswitch") as run:
        target = run(program("match"))
        assert isinstance(target, Live)
        yield target


@pytest.mark.parametrize("table", MATCHES)
def test_packets_see_an_entry_before_or_after_a_change(switch: Live, table: str) -> None:
    """Never nothing, and never something in between, while this entry changes and others come and go."""

    def made(value: int, priority: int, keys: dict[str, Any]) -> P4TableEntry:
        return entry(table, value, priority if table in BY_PRIORITY else 0, **keys)

    others = [made(9, 1 + number, MISSES[table](number)) for number in range(20)]
    with (
        switch.installed(made(1, 100, MATCHES[table])),
        switch.sending(2, packet(PROBE)) as outputs,
    ):
        for number in range(40):
            with switch.installed(*others[: number % 20]):
                switch.client.modify(made(1 + number % 2, 100, MATCHES[table]))
    assert len(outputs) > 40
    assert {results([(2, output)])[table] for output in outputs} == {1, 2}
