"""Circuits with owners: one change is all or nothing, whatever the switch does."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machine.errors import EntrainError
from ocs.audit import AuditLog, entries
from ocs.crossbar import Change, Circuit, Conflict, Crossbar, PortFailed, join
from ocs.driver import Refused, Unanswered
from ocs.manager import CircuitManager, CircuitStatus, NotLit, NotPutBack
from tests.ocs.switch import FakeSwitch, circuits

BEFORE = circuits("1-5", "2-6")


def _manager(switch: FakeSwitch, audit: AuditLog | None = None, **held: str) -> CircuitManager:
    owners = {owner: circuits(*names.split()) for owner, names in held.items()}
    return CircuitManager(Crossbar(8), switch, audit, held=owners)


def test_a_change_is_held_until_it_is_released_and_its_circuits_stay() -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE)
        manager = _manager(switch)
        await manager.change("bert", circuits("1-6"))
        assert manager.held == {"bert": circuits("1-6")}
        assert switch.circuits == circuits("1-6")
        await manager.release("bert")
        assert manager.held == {}
        assert switch.circuits == circuits("1-6")
        await manager.change("gpt", circuits("1-7"))
        assert switch.circuits == circuits("1-7")

    asyncio.run(run())


def test_what_exists_is_not_made_again() -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE)
        await _manager(switch).change("bert", BEFORE)
        assert switch.applied == []

    asyncio.run(run())


def test_an_undone_change_leaves_everything_as_it_was() -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE)
        manager = _manager(switch, bert="1-5")
        changed = await manager.change("bert", circuits("1-6", "3-7"))
        assert switch.circuits == circuits("1-6", "3-7")
        await manager.undo(changed)
        assert manager.held == {"bert": circuits("1-5")}
        assert switch.circuits >= BEFORE

    asyncio.run(run())


def test_undoing_leaves_alone_what_others_hold_by_now() -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE)
        manager = _manager(switch)
        changed = await manager.change("bert", circuits("1-6"))
        await manager.change("gpt", circuits("2-7"))
        await manager.undo(changed)
        assert manager.held == {"gpt": circuits("2-7")}
        assert switch.circuits >= circuits("2-7", "1-5")

    asyncio.run(run())


@pytest.mark.parametrize("faults", [["silent"], ["done"], ["half"], ["silent", "half"], ["half", "done"]])
def test_a_silent_switch_is_read_and_told_only_what_is_left(faults: list[str]) -> None:
    """The switch in memory raises an error if it is to make or delete anything twice."""

    async def run() -> None:
        switch = FakeSwitch(BEFORE, faults=list(faults))
        await _manager(switch).change("bert", circuits("1-6", "3-7"))
        assert switch.circuits == circuits("1-6", "3-7")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (["silent", "silent", "silent"], Unanswered),
        (["half", "silent", "silent"], Unanswered),
        (["dark"], NotLit),
        (["refuses"], Refused),
    ],
)
def test_a_failed_change_is_undone(faults: list[str], error: type[EntrainError], tmp_path: Path) -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE, faults=list(faults))
        manager = _manager(switch, AuditLog(tmp_path / "audit"), gpt="2-6")
        with pytest.raises(error):
            await manager.change("bert", circuits("1-7"))
        assert switch.circuits == BEFORE
        assert manager.held == {"gpt": circuits("2-6")}
        assert all(not change.ports & {2, 6} for change in switch.applied)
        assert [entry["event"] for entry in entries(tmp_path / "audit")] == ["change", "put back"]

    asyncio.run(run())


def test_every_moment_of_failure_ends_before_or_after_the_change() -> None:
    """All sequences of four faults: the change is either done or undone, and others keep their circuits."""

    async def run(faults: tuple[str, ...]) -> None:
        switch = FakeSwitch(circuits("1-5", "2-6", "3-7"), faults=list(faults))
        manager = _manager(switch, gpt="3-7")
        try:
            await manager.change("bert", circuits("1-6"))
        except NotPutBack:
            assert manager.held == {"gpt": circuits("3-7")}
        except EntrainError:
            assert switch.circuits == circuits("1-5", "2-6", "3-7")
            assert manager.held == {"gpt": circuits("3-7")}
        else:
            assert switch.circuits == circuits("1-6", "3-7")
            assert manager.held == {"bert": circuits("1-6"), "gpt": circuits("3-7")}
        assert circuits("3-7") <= switch.circuits

    async def run_all() -> None:
        for faults in itertools.product(("", "silent", "done", "half", "dark", "refuses"), repeat=4):
            await run(faults)

    asyncio.run(run_all())


@st.composite
def _wanted(draw: st.DrawFn) -> frozenset[Circuit]:
    ports = draw(st.permutations(range(1, 9)))
    return frozenset(join(ports[2 * i], ports[2 * i + 1]) for i in range(draw(st.integers(0, 3))))


_STEPS = st.tuples(
    st.sampled_from(["change", "release", "undo"]),
    st.sampled_from(["bert", "gpt", "vgg"]),
    _wanted(),
    st.lists(st.sampled_from(["silent", "done", "half", ""]), max_size=2),
)


@given(st.lists(_STEPS, max_size=12))
def test_whatever_happens_what_owners_hold_is_lit_and_only_they_change_it(
    steps: list[tuple[str, str, frozenset[Circuit], list[str]]],
) -> None:
    async def run() -> None:
        switch = FakeSwitch(circuits("1-5", "2-6", "3-7", "4-8"))
        manager, last = _manager(switch), {}
        for kind, owner, wanted, faults in steps:
            switch.faults, switch.applied = faults, []
            before = manager.held
            try:
                if kind == "change":
                    last[owner] = await manager.change(owner, wanted)
                    assert manager.held.get(owner, frozenset()) == wanted
                elif kind == "release":
                    await manager.release(owner)
                elif owner in last:
                    await manager.undo(last.pop(owner))
            except Conflict as conflict:
                assert conflict.owner != owner
                assert manager.held == before
            others = {each: theirs for each, theirs in before.items() if each != owner}
            assert others == {each: theirs for each, theirs in manager.held.items() if each != owner}
            kept = {port for theirs in others.values() for circuit in theirs for port in circuit.ports}
            assert not any(change.ports & kept for change in switch.applied)
            assert all(theirs <= switch.circuits for theirs in manager.held.values())

    asyncio.run(run())


def test_a_change_that_cannot_be_put_back_says_both() -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE, faults=["dark", "silent", "silent", "silent"])
        with pytest.raises(NotPutBack, match=r"did not make 1-7; what was before could not be put back"):
            await _manager(switch).change("bert", circuits("1-7"))

    asyncio.run(run())


def test_a_conflict_touches_nothing_and_is_in_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE)
        manager = _manager(switch, AuditLog(tmp_path / "audit"), gpt="1-5")
        with pytest.raises(Conflict, match="gpt"):
            await manager.change("bert", circuits("1-6"))
        assert switch.applied == []
        [entry] = entries(tmp_path / "audit")
        assert (entry["event"], entry["owner"], entry["circuits"]) == ("refused", "bert", ["1-6"])
        assert "which gpt holds in circuit 1-5" in entry["problem"]

    asyncio.run(run())


def test_a_port_whose_circuit_stays_dark_is_not_used_again() -> None:
    async def run() -> None:
        switch = FakeSwitch(faults=["dark"])
        manager = _manager(switch)
        with pytest.raises(NotLit):
            await manager.change("bert", circuits("1-6"))
        assert manager.failed.keys() == {1, 6}
        with pytest.raises(PortFailed):
            await manager.change("bert", circuits("2-6"))
        await manager.change("bert", circuits("2-7"))

    asyncio.run(run())


def test_a_port_that_fails_during_a_change_is_named() -> None:
    async def run() -> None:
        switch = FakeSwitch(failed=frozenset({6}), faults=["silent"])
        manager = _manager(switch)
        with pytest.raises(PortFailed, match="port 6"):
            await manager.change("bert", circuits("1-6"))
        assert manager.failed == {6: "failed"}

    asyncio.run(run())


def test_reading_is_repeated() -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE, unread=2)
        assert (await _manager(switch).read()).circuits == BEFORE
        switch.unread = 3
        with pytest.raises(Unanswered):
            await _manager(switch).read()

    asyncio.run(run())


def test_concurrent_changes_of_one_port_have_one_winner() -> None:
    async def run() -> None:
        switch = FakeSwitch()
        manager = _manager(switch)
        both = (manager.change("bert", circuits("1-5")), manager.change("gpt", circuits("1-6")))
        results = await asyncio.gather(*both, return_exceptions=True)
        assert [isinstance(result, Conflict) for result in results] == [False, True]
        assert switch.circuits == circuits("1-5")

    asyncio.run(run())


def test_a_cancelled_change_is_undone() -> None:
    async def run() -> None:
        switch = FakeSwitch(BEFORE)
        begun, apply = asyncio.Event(), switch.apply

        async def hang(change: Change) -> None:
            switch.apply = apply  # type: ignore[method-assign]
            await apply(Change(change.remove))
            begun.set()
            await asyncio.Event().wait()

        switch.apply = hang  # type: ignore[method-assign]
        manager = _manager(switch)
        task = asyncio.create_task(manager.change("bert", circuits("1-7")))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert switch.circuits == BEFORE
        assert manager.held == {}

    asyncio.run(run())


def test_the_status_tells_owner_state_and_loss() -> None:
    async def run() -> None:
        switch = FakeSwitch(circuits("1-5", "2-6", "4-8"), failed=frozenset({2}))
        assert await _manager(switch, bert="1-5 3-7", gpt="2-6").status() == [
            CircuitStatus(min(circuits("1-5")), "bert", "lit", 2.0),
            CircuitStatus(min(circuits("2-6")), "gpt", "failed", 2.0),
            CircuitStatus(min(circuits("3-7")), "bert", "dark", 2.0),
            CircuitStatus(min(circuits("4-8")), None, "lit", 2.0),
        ]

    asyncio.run(run())


def test_the_log_survives_a_line_that_a_crash_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = AuditLog(path, clock=lambda: 1.5)
    log.write("change", {"owner": "bert"})
    log.close()
    with path.open("a") as file:
        file.write('{"unix_s": 1.6, "event": "do')
    AuditLog(path, clock=lambda: 2.5).write("released", {"owner": "bert"})
    assert list(entries(path)) == [
        {"unix_s": 1.5, "event": "change", "owner": "bert"},
        {"unix_s": 2.5, "event": "released", "owner": "bert"},
    ]


def test_nothing_is_done_that_cannot_be_logged(tmp_path: Path) -> None:
    async def run() -> None:
        switch, log = FakeSwitch(BEFORE), AuditLog(tmp_path / "audit")
        log.close()
        log._file = 1 << 20  # a descriptor that nobody has
        with pytest.raises(EntrainError, match="cannot be written"):
            await _manager(switch, log).change("bert", circuits("1-6"))
        assert switch.circuits == BEFORE

    asyncio.run(run())
