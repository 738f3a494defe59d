"""TL1 and SCPI against switches that answer late, in pieces, with errors, or hang up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from machine.errors import BadInput, EntrainError
from ocs.crossbar import Change, Crossbar, PortFailed
from ocs.driver import Driver, Refused, Unanswered
from ocs.manager import CircuitManager, NotLit
from ocs.scpi import ScpiDriver
from ocs.tl1 import Tl1Driver
from tests.ocs.server import NAMES, ScpiServer, Server, Tl1Server
from tests.ocs.switch import circuits


def tl1(server: Server, timeout_s: float = 5.0) -> Driver:
    return Tl1Driver(server.address, 8, names=NAMES, timeout_s=timeout_s)


def scpi(server: Server, timeout_s: float = 5.0) -> Driver:
    return ScpiDriver(server.address, 8, timeout_s=timeout_s)


KINDS: dict[str, tuple[Callable[..., Server], Callable[..., Driver]]] = {
    "tl1": (Tl1Server, tl1),
    "tl1, activating": (lambda **options: Tl1Server(activates=True, **options), tl1),
    "scpi": (ScpiServer, scpi),
}
every_kind = pytest.mark.parametrize("kind", KINDS)

LIT = {(1, 5), (5, 1), (2, 6), (6, 2)}
"""Circuits 1-5 and 2-6."""


def run(
    kind: str,
    session: Callable[[Server, CircuitManager], Awaitable[None]],
    *,
    timeout_s: float = 5.0,
    **options: object,
) -> Server:
    """Run a session with a manager at a switch with circuits 1-5 and 2-6, and return the switch."""
    serve, drive = KINDS[kind]

    async def main() -> Server:
        async with serve(there=set(LIT), **options).serving() as server:
            manager = CircuitManager(Crossbar(8), drive(server, timeout_s))
            try:
                await session(server, manager)
            finally:
                await manager.close()
            return server

    return asyncio.run(main())


@every_kind
@pytest.mark.parametrize("pieces", [False, True])
def test_circuits_are_read_made_and_deleted(kind: str, pieces: bool) -> None:
    async def session(server: Server, manager: CircuitManager) -> None:
        assert (await manager.read()).circuits == circuits("1-5", "2-6")
        await manager.change("bert", circuits("1-6", "3-8", "4-7"))
        assert server.circuits() == {(1, 6), (3, 8), (4, 7)}
        assert (await manager.read()).circuits == circuits("1-6", "3-8", "4-7")

    run(kind, session, pieces=pieces)


@every_kind
def test_ports_outside_the_change_are_not_touched(kind: str) -> None:
    async def session(server: Server, manager: CircuitManager) -> None:
        await manager.change("gpt", circuits("2-6"))
        await manager.change("bert", circuits("1-7"))

    server = run(kind, session)
    names = {NAMES[1], NAMES[5]} if kind != "scpi" else {"(@2", "(@6", ",14", ",10"}
    changing = [command for command in server.commands if server.changes(command)]
    assert changing
    assert not [command for command in changing if any(name in command for name in names)]


@every_kind
@pytest.mark.parametrize("fault", ["before", "after", "late"])
def test_what_is_not_known_is_read_and_only_the_rest_is_repeated(kind: str, fault: str) -> None:
    """The servers refuse to make or delete what they have made or deleted."""

    async def session(server: Server, manager: CircuitManager) -> None:
        for faults in ([fault], ["", fault], [fault, fault]):
            server.faults = faults
            await manager.change("bert", circuits("1-6"))
            assert server.circuits() == {(1, 6)}
            await manager.change("bert", circuits("1-5", "2-6"))
            assert server.circuits() == {(1, 5), (2, 6)}

    server = run(kind, session, timeout_s=0.1 if fault == "late" else 5.0)
    assert server.connections > 3


@every_kind
def test_a_refused_change_is_put_back_and_its_error_is_shown(kind: str) -> None:
    async def session(server: Server, manager: CircuitManager) -> None:
        deletions = 1 if kind == "scpi" else 2
        server.faults = [""] * deletions + ["error"]
        with pytest.raises(Refused, match=r"no light|Connection failed") as refused:
            await manager.change("bert", circuits("1-7"))
        assert refused.value.circuit in circuits("1-7")
        assert server.circuits() == {(1, 5), (2, 6)}
        assert manager.failed.keys() == {1, 7}

    run(kind, session)


@every_kind
def test_of_several_circuits_the_refused_one_is_named(kind: str) -> None:
    async def session(server: Server, manager: CircuitManager) -> None:
        with pytest.raises(Refused) as refused:
            await manager.change("bert", circuits("4-7", "3-8"))
        assert refused.value.circuit in circuits("3-8")
        assert manager.failed.keys() == {3, 8}

    run(kind, session, stubborn={3})


@every_kind
def test_a_circuit_that_does_not_come_up_is_named(kind: str) -> None:
    async def session(server: Server, manager: CircuitManager) -> None:
        server.faults = ["lies"]
        with pytest.raises(NotLit, match="make 3-8"):
            await manager.change("bert", circuits("3-8"))
        assert server.circuits() == {(1, 5), (2, 6)}

    run(kind, session)


@every_kind
def test_failed_ports_are_read(kind: str) -> None:
    async def session(server: Server, manager: CircuitManager) -> None:
        with pytest.raises(PortFailed, match="port 8"):
            await manager.change("bert", circuits("3-8"))
        assert (await manager.read()).failed == {8}

    run(kind, session, failed={8})


@every_kind
def test_half_a_circuit_is_none_and_is_replaced(kind: str) -> None:
    async def session(server: Server, manager: CircuitManager) -> None:
        server.there = {(1, 5), (2, 6)}
        assert (await manager.read()).circuits == frozenset()
        await manager.change("bert", circuits("1-5"))
        await manager.change("gpt", circuits("2-7"))
        assert server.there == {(1, 5), (5, 1), (2, 7), (7, 2)}

    run(kind, session)


@every_kind
def test_a_switch_that_stays_silent_is_an_error(kind: str) -> None:
    async def session(server: Server, manager: CircuitManager) -> None:
        server.faults = ["before"] * 20
        with pytest.raises(EntrainError, match="closed the connection"):
            await manager.change("bert", circuits("1-6"))
        assert manager.held == {}

    server = run(kind, session)
    assert server.circuits() == {(1, 5), (2, 6)}


@pytest.mark.parametrize("kind", ["tl1", "scpi"])
def test_a_switch_that_is_not_there_is_an_error(kind: str) -> None:
    async def main() -> None:
        serve, drive = KINDS[kind]
        async with serve().serving() as server:
            pass
        with pytest.raises(Unanswered, match=f"{server.address} cannot be reached"):
            await CircuitManager(Crossbar(8), drive(server)).read()

    asyncio.run(main())


def test_tl1_logs_in_on_each_connection_and_shows_no_password() -> None:
    async def main() -> None:
        async with Tl1Server(users={"admin": "secret"}).serving() as server:
            driver = Tl1Driver(server.address, 8, names=NAMES, user="admin", password="secret")
            await driver.read()
            await driver.close()
            await driver.read()
            await driver.close()
            assert [command.split(":")[0] for command in server.commands].count("ACT-USER") == 2
            wrong = Tl1Driver(server.address, 8, names=NAMES, user="admin", password="guess")
            with pytest.raises(Refused, match=r"ACT-USER::admin.*DENY: PICC") as refused:
                await wrong.read()
            assert "guess" not in str(refused.value)
            await wrong.close()

    asyncio.run(main())


def test_tl1_sends_braces_as_they_are() -> None:
    async def main() -> None:
        async with Tl1Server(users={"admin": "p{a}ss{"}).serving() as server:
            driver = Tl1Driver(server.address, 8, names=NAMES, user="admin", password="p{a}ss{")
            await driver.read()
            await driver.close()

    asyncio.run(main())


@dataclass
class _Named(Tl1Server):
    """Calls its cross-connects what it likes."""

    name: str = ""

    def _line(self, pair: tuple[int, int]) -> str:
        return super()._line(pair).replace("CONNNAME=", f"CONNNAME={self.name}")


@pytest.mark.parametrize("name", ["a{b}", "{", "a{0!r}"])
def test_tl1_deletes_what_is_called_like_a_format(name: str) -> None:
    async def main() -> None:
        async with _Named(name=name, there={(1, 5), (5, 1)}).serving() as server:
            await tl1(server).apply(Change(add=circuits("1-6")))
            assert server.circuits() == {(1, 6)}
            assert any(f",{name}" in command for command in server.commands)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["x;DLT-CRS", "x\x1b[2K", "x y"])
def test_tl1_sends_no_name_that_would_be_another_command(name: str) -> None:
    async def main() -> None:
        async with _Named(name=name, there={(1, 5), (5, 1)}).serving() as server:
            with pytest.raises(
                Refused, match="which no command can carry; rename or delete it at the switch"
            ):
                await tl1(server).apply(Change(add=circuits("1-6")))
            assert [command.split(":")[0] for command in server.commands] == ["RTRV-CRS"]

    asyncio.run(main())


def test_tl1_logs_in_again_when_its_session_has_ended() -> None:
    async def main() -> None:
        async with Tl1Server(there=set(LIT), users={"admin": "secret"}).serving() as server:
            driver = Tl1Driver(server.address, 8, names=NAMES, user="admin", password="secret")
            manager = CircuitManager(Crossbar(8), driver)
            await manager.change("bert", circuits("1-6"))
            server.logged_out = True
            await manager.change("bert", circuits("1-5"))
            assert server.circuits() == {(1, 5)}
            await manager.close()

    asyncio.run(main())


def test_tl1_refuses_a_password_that_it_cannot_send() -> None:
    with pytest.raises(BadInput, match="does not carry"):
        Tl1Driver("127.0.0.1:1", 8, user="admin", password="a;b")


def test_scpi_refuses_more_ports_than_the_switch_has() -> None:
    async def main() -> None:
        async with ScpiServer().serving() as server:
            driver = ScpiDriver(server.address, 9)
            for _ in range(2):
                with pytest.raises(BadInput, match=r"9 ports .* has 8 inputs and 8 outputs"):
                    await driver.read()

    asyncio.run(main())
