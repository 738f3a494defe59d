"""The crossbar model: what a change may touch, and that it is as small as it can be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machine.errors import BadInput
from ocs.crossbar import Change, Circuit, Conflict, Crossbar, PortFailed, Reading, after, join, plan
from tests.ocs.switch import circuits

PORTS = 6
ALL = [Circuit(a, b) for a in range(1, PORTS + 1) for b in range(a + 1, PORTS + 1)]


@st.composite
def matchings(draw: st.DrawFn) -> frozenset[Circuit]:
    """Circuits, of which no two share a port."""
    order = draw(st.permutations(range(1, PORTS + 1)))
    count = draw(st.integers(0, PORTS // 2))
    return frozenset(join(order[2 * i], order[2 * i + 1]) for i in range(count))


def _steps(present: frozenset[Circuit]) -> Iterator[frozenset[Circuit]]:
    """Every state that one operation leads to: delete one circuit, or make one between dark ports."""
    used = {port for circuit in present for port in circuit.ports}
    for circuit in ALL:
        if circuit in present:
            yield present - {circuit}
        elif not used & set(circuit.ports):
            yield present | {circuit}


def _fewest(present: frozenset[Circuit], wanted: frozenset[Circuit]) -> int:
    """How many operations it takes until all wanted circuits exist, by breadth-first search."""
    seen, frontier = {present}, [present]
    for count in itertools.count():
        if any(wanted <= state for state in frontier):
            return count
        reached = {after for state in frontier for after in _steps(state)} - seen
        seen |= reached
        frontier = list(reached)
    raise AssertionError


@given(present=matchings(), wanted=matchings())
def test_a_plan_makes_all_that_is_wanted_by_the_fewest_changes(
    present: frozenset[Circuit], wanted: frozenset[Circuit]
) -> None:
    change = plan(Crossbar(PORTS), Reading(present), "job", wanted, {})
    assert wanted <= after(present, change)
    assert len(change.remove) + len(change.add) == _fewest(present, wanted)


@given(present=matchings(), wanted=matchings(), data=st.data())
def test_a_plan_touches_no_port_that_another_owner_holds(
    present: frozenset[Circuit], wanted: frozenset[Circuit], data: st.DataObject
) -> None:
    theirs = data.draw(st.sets(st.sampled_from(sorted(present)))) if present else set()
    taken = {port for circuit in theirs for port in circuit.ports}
    try:
        change = plan(Crossbar(PORTS), Reading(present), "mine", wanted, {"theirs": theirs})
    except Conflict as conflict:
        assert conflict.owner == "theirs"
        assert conflict.port in set(conflict.circuit.ports) & set(conflict.held.ports) & taken
    else:
        assert not change.ports & taken


def test_a_conflict_names_the_circuit_the_port_and_the_owner() -> None:
    with pytest.raises(Conflict, match=r"circuit 1-5 needs port 5, which bert holds in circuit 3-5"):
        plan(Crossbar(8), Reading(circuits("3-5")), "gpt", circuits("1-5"), {"bert": circuits("3-5")})


def test_an_owner_does_not_stand_in_its_own_way() -> None:
    held = {"bert": circuits("1-5", "2-6")}
    change = plan(Crossbar(8), Reading(circuits("1-5", "2-6")), "bert", circuits("1-6", "2-5"), held)
    assert change == Change(circuits("1-5", "2-6"), circuits("1-6", "2-5"))


def test_what_a_failed_port_cannot_make_is_refused_and_what_exists_there_is_not() -> None:
    reading = Reading(circuits("1-5"), frozenset({5, 6}))
    assert not plan(Crossbar(8), reading, "job", circuits("1-5"), {})
    with pytest.raises(PortFailed, match="circuit 2-6 needs port 6"):
        plan(Crossbar(8), reading, "job", circuits("2-6"), {})


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (("1-9",), "there is no port 9; the optical circuit switch has ports 1 to 8"),
        (("1-5", "1-6"), "circuits 1-5 and 1-6 both need port 1"),
        (("2-7",), "circuit 2-7: light would lose 3.5 dB, and the budget is 3 dB"),
    ],
)
def test_circuits_that_cannot_be_are_refused(wanted: tuple[str, ...], message: str) -> None:
    crossbar = Crossbar(8, loss_db={7: 2.5}, budget_db=3.0)
    with pytest.raises(BadInput, match=message):
        plan(crossbar, Reading(), "job", circuits(*wanted), {})


def test_the_loss_of_a_circuit_is_that_of_its_two_ports() -> None:
    assert Crossbar(8, loss_db={7: 2.5}).insertion_loss_db(join(7, 2)) == pytest.approx(3.5)


@pytest.mark.parametrize(("one", "other"), [(3, 3), (0, 1), (-1, 2)])
def test_a_circuit_joins_two_ports(one: int, other: int) -> None:
    with pytest.raises(ValueError, match="joins two ports"):
        join(one, other)


def test_an_impossible_change_is_an_error() -> None:
    with pytest.raises(ValueError, match="2-4 do not exist"):
        after(circuits("1-3"), Change(circuits("2-4")))
    with pytest.raises(ValueError, match="1-4: a port of it has circuit 1-3"):
        after(circuits("1-3"), Change(add=circuits("1-4")))
