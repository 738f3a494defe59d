"""Admission is one transaction: whatever fails or is killed, reservations, circuits and tables agree."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controlplane.admission import Admission, Failures, JobStatus
from controlplane.ledger import Entry, InUse, Ledger, check_cluster
from controlplane.tenants import Tenant
from machine.errors import BadInput, EntrainError
from schedulers.placement.cluster import Circuit, Cluster, Port, Request, empty
from schedulers.placement.queue import Outcome, Waiting
from schedulers.placement.strategies import STRATEGIES

CLUSTER = Cluster(leaves=4, spines=4, servers_per_leaf=2, gpus_per_server=2, ocs=True)
"""16 GPUs: 4 on each leaf, in 2 servers."""

HOSTS = [f"h{gpu + 1}" for gpu in range(CLUSTER.gpus)]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory: the ledger waits for the disk at each step, which is not what is tested."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        yield Path(directory)


class Killed(BaseException):
    """The controller is gone: nothing of it runs any longer."""


class World:
    """What outlives a controller: the switches, the OCS, and the file. Time stands still until it is set.

    Every effect passes `point` before and after; `at_point` may raise there.
    """

    def __init__(self, path: Path, strategy: str = "ocs-vclos", order: str = "fifo") -> None:
        self.path = path
        self.strategy = STRATEGIES[strategy]
        self.order = order
        self.now = 1000.0
        self.tables: dict[str, frozenset[Tenant]] = {f"switch{n}": frozenset() for n in range(3)}
        self.held: dict[str, frozenset[Circuit]] = {}
        self.light: set[Circuit] = set()
        self.failed = Failures({}, {})
        self.dead: Callable[[Tenant], bool] = lambda _: False
        self.unreachable: Callable[[Tenant], bool] = lambda _: False
        self.broken: set[Port] = set()
        self.silence = ""
        self.at_point: Callable[[str], None] = lambda _: None
        self.steps: list[tuple[str, str]] = []

    def point(self, what: str) -> None:
        self.at_point(what)

    # -- Switches

    async def apply(self, tenants: Sequence[Tenant], concerned: Sequence[Tenant]) -> None:
        before = dict(self.tables)
        if any(map(self.unreachable, concerned)):
            raise EntrainError("switch1: does not answer")
        for name in self.tables:
            await asyncio.sleep(0)  # others may ask meanwhile
            try:
                self.point(f"before {name}")
                if any(map(self.dead, tenants)):
                    raise EntrainError(f"{name}: refused")
                self.tables[name] = frozenset(tenants)
                self.point(f"after {name}")
            except EntrainError:
                self.tables = before
                raise

    def failures(self) -> Failures:
        return self.failed

    # -- Circuits

    async def change(self, owner: str, wanted: Collection[Circuit]) -> None:
        self.point("before circuits")
        for circuit in wanted:
            taken = {
                port for who, kept in self.held.items() if who != owner for each in kept for port in each
            }
            assert not taken & set(circuit), "admission never asks for a port that another job has"
            if broken := self.broken & set(circuit):
                self.failed = Failures({}, dict.fromkeys(broken, "no light"))
                self.held.pop(owner, None)
                raise EntrainError(f"{min(broken)}: no light")
            self.light = {each for each in self.light if not set(each) & set(circuit)} | {circuit}
            self.point("a circuit")
        self.held[owner] = frozenset(wanted)
        self.point("after circuits")

    async def release(self, owner: str) -> None:
        self.point("before release")
        self.held.pop(owner, None)
        self.point("after release")

    async def owners(self) -> Collection[str]:
        return list(self.held)

    async def joined(self) -> Collection[Circuit]:
        if self.silence:
            raise EntrainError(self.silence)
        return list(self.light)

    # -- controllers

    @asynccontextmanager
    async def controller(self, backfill: bool = False) -> AsyncIterator[Admission]:
        """One controller, from its start to its end."""
        ledger = Ledger(self.path, CLUSTER)

        def on_step(entry: Entry, step: str) -> None:
            self.steps.append((entry.name, step))
            self.point(step)

        try:
            async with Admission(
                empty(CLUSTER),
                HOSTS,
                self.strategy,
                ledger,
                self,
                Optics(self) if self.strategy.ocs else None,
                order=self.order,
                backfill=backfill,
                clock=lambda: self.now,
                on_step=on_step,
            ) as admission:
                yield admission
        finally:
            ledger.close()  # which the kernel does for a killed one

    def agrees(self, admission: Admission) -> None:
        """Assert that reservations, circuits and tables are those of the same jobs, and fit together."""
        entries = {status.entry.name: status.entry for status in admission.jobs()}
        holding = {name: each for name, each in entries.items() if each.placement is not None}
        assert all(each.phase == "running" for each in holding.values())
        tenants = {
            Tenant(name, each.vrf, admission.hosts_of(each.placement), each.placement)
            for name, each in holding.items()
            if each.placement
        }
        assert len({tenant.vrf for tenant in tenants}) == len(tenants)
        assert all(table == tenants for table in self.tables.values())
        if self.strategy.ocs:
            held: dict[str, set[Circuit]] = {}
            for circuit, name in admission.circuits().items():
                held.setdefault(name, set()).add(circuit)
            assert self.held == held
            assert all(kept <= self.light for kept in self.held.values())
        gpus = [gpu for tenant in tenants for gpu in tenant.placement.gpus]
        assert len(set(gpus)) == len(gpus)


class Optics:
    """The OCS of a world; a class of its own, as both protocols have `failures`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.change = world.change
        self.release = world.release
        self.owners = world.owners
        self.joined = world.joined

    @property
    def silence(self) -> str:
        return self.world.silence

    def failures(self) -> Failures:
        return Failures({}, {})


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 100))


async def submit(admission: Admission, name: str, gpus: int, duration_s: float = 10.0) -> JobStatus:
    """Submit a job and return how it stands once all is done that can be done."""
    await admission.submit(Request(name, gpus), duration_s)
    await admission.settled()
    return status(admission, name)


def status(admission: Admission, name: str) -> JobStatus:
    return next(each for each in admission.jobs(past=True) if each.entry.name == name)


def phases(admission: Admission) -> dict[str, str]:
    return {each.entry.name: each.entry.phase for each in admission.jobs()}


async def scenario(admission: Admission, asked: list[str], done: list[str]) -> None:
    """Jobs come, wait and go. `d` waits for `b` and `c`, and gets some of their GPUs and circuits.

    `asked` gets what is going to be asked for, `done` what was answered.
    """
    for name, gpus in (("a", 4), ("b", 6), ("c", 6), ("d", 8)):
        asked.append(f"submit {name}")
        await submit(admission, name, gpus)
        done.append(asked[-1])
    for name in ("b", "c", "a"):
        asked.append(f"end {name}")
        await admission.end(name)
        done.append(asked[-1])


@pytest.mark.parametrize("strategy", ["ocs-vclos", "vclos", "source"])
def test_whenever_a_controller_is_killed_the_next_one_ends_in_agreement(
    strategy: str, tmp_path: Path
) -> None:
    """One run for each point, before and after every effect, at which the first controller can be killed."""

    async def killed_at(number: int) -> bool:
        world = World(tmp_path / str(number), strategy)
        points = itertools.count()

        def at_point(_: str) -> None:
            if next(points) >= number:
                raise Killed

        world.at_point = at_point
        asked: list[str] = []
        done: list[str] = []
        killed = False
        try:
            async with world.controller() as admission:
                await scenario(admission, asked, done)
        except Killed:
            killed = True
        world.at_point = lambda _: None
        async with world.controller() as admission:
            world.agrees(admission)
            assert not admission.problem
            present = phases(admission)
            for name in "abcd":
                if f"submit {name}" in done and f"end {name}" not in asked:
                    assert name in present  # nothing is lost
                if f"end {name}" in done:
                    assert name not in present
            for name in present:
                await admission.end(name)
            world.agrees(admission)
            await submit(admission, "whole", 16)
            assert phases(admission) == {"whole": "running"}  # nothing has leaked
            world.agrees(admission)
        return killed

    runs = next(n for n in itertools.count() if not asyncio.run(asyncio.wait_for(killed_at(n), 100)))
    assert runs > 60


@pytest.mark.parametrize("strategy", ["ocs-vclos", "vclos"])
def test_whatever_fails_is_rolled_back_and_tried_again(strategy: str, tmp_path: Path) -> None:
    """The n-th effect on switches or OCS fails, for each n: the other jobs keep what they have."""
    number = 0

    async def test() -> bool:
        world = World(tmp_path / str(number), strategy)
        async with world.controller() as admission:
            await submit(admission, "a", 6)
            others = (world.held.get("a"), status(admission, "a").entry.placement)
            seen = 0

            def at_point(what: str) -> None:
                nonlocal seen
                if what.startswith(("before", "a ")):
                    seen += 1
                    if seen == number + 1:
                        raise EntrainError("it broke")

            world.at_point = at_point
            await submit(admission, "b", 6)
            assert (world.held.get("a"), status(admission, "a").entry.placement) == others
            failed = seen > number
            if failed:
                assert admission.problem == "it broke"
                assert phases(admission) == {"a": "running", "b": "waiting"}
                world.agrees(admission)
                world.at_point = lambda _: None
                await admission.settled()
                assert status(admission, "b").entry.problem == "it broke"
            world.agrees(admission)
            assert phases(admission) == {"a": "running", "b": "running"}
            assert not admission.problem
        return failed

    while asyncio.run(asyncio.wait_for(test(), 100)):
        number += 1
    assert number >= (3 if strategy == "vclos" else 8)


def test_a_full_disk_admits_nobody_and_leaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs")
        async with world.controller() as admission:
            await submit(admission, "a", 6)
            put = Ledger.put

            def full(self: Ledger, entry: Entry) -> None:
                if entry.phase == "running":
                    raise EntrainError("the disk is full")
                put(self, entry)

            monkeypatch.setattr(Ledger, "put", full)
            waits = await submit(admission, "b", 6)
            assert waits.entry.phase == "waiting"
            assert waits.entry.problem == "the disk is full"
            world.agrees(admission)
            monkeypatch.undo()
            await admission.settled()
            assert phases(admission) == {"a": "running", "b": "running"}
            world.agrees(admission)

    run(test)


def test_a_waiting_job_says_for_what_and_behind_whom(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs", "vclos")
        async with world.controller() as admission:
            for leaf in range(4):  # three GPUs of each leaf: four idle GPUs, in no two of one server
                await submit(admission, f"half{leaf}", 2)
                await submit(admission, f"one{leaf}", 1)
            world.now += 5
            gpus = await submit(admission, "gpus", 8)
            assert gpus.waiting == Waiting(1005, 1005, "gpus")
            world.now += 5
            behind = await submit(admission, "behind", 1)
            assert behind.waiting == Waiting(1010, 1010, "queue", "gpus")
            world.now += 1
            await admission.end("gpus", "cancelled")
            assert phases(admission)["behind"] == "running"
            [wait] = status(admission, "behind").entry.waited
            assert (wait.from_s, wait.to_s, wait.behind) == (1010, 1011, "gpus")

    run(test)


def test_a_job_that_waits_for_what_has_failed_says_so_and_holds_nobody_up(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs", "vclos")
        every = [Port("leaf", leaf, port) for leaf in range(4) for port in range(3)]
        world.failed = Failures({}, dict.fromkeys(every, "spine1 to spine3 are down"))
        async with world.controller() as admission:
            wide = await submit(admission, "wide", 8)
            assert wide.waiting is not None
            assert wide.waiting.cause == "failure"
            assert wide.entry.problem == "spine1 to spine3 are down"
            assert (await submit(admission, "near", 4)).entry.phase == "running"
            await submit(admission, "whole", 16)  # this one waits for GPUs as well
            assert (await submit(admission, "nearer", 4)).entry.phase == "running"
            world.failed = Failures({}, {})
            await admission.settled()
            assert phases(admission)["wide"] == "running"
            last = await submit(admission, "last", 1)
            assert last.waiting is not None
            assert (last.waiting.cause, last.waiting.behind) == ("queue", "whole")

    run(test)


@pytest.mark.parametrize(("order", "first"), [("fifo", "long"), ("fewest-gpus", "small"), ("edf", "urgent")])
def test_the_queue_is_that_of_the_scheduler(order: str, first: str, tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs", "vclos", order)
        async with world.controller() as admission:
            await submit(admission, "all", 16)
            await admission.submit(Request("long", 16), 100.0)
            await admission.submit(Request("small", 12), 50.0)
            await admission.submit(Request("urgent", 16), 50.0, 1001.0)
            await admission.end("all")
            assert [name for name, phase in phases(admission).items() if phase == "running"] == [first]

    run(test)


def test_backfilling_starts_what_ends_before_the_first_one_could_start(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs", "vclos")
        async with world.controller(backfill=True) as admission:
            await submit(admission, "running", 12, 10.0)
            await submit(admission, "first", 16, 10.0)
            assert (await submit(admission, "short", 4, 5.0)).entry.phase == "running"

    run(test)


def test_a_preview_is_what_a_submitted_job_gets_and_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs")
        async with world.controller() as admission:
            await submit(admission, "a", 6)
            tables = dict(world.tables)
            preview = admission.preview(Request("b", 6))
            assert isinstance(preview, Outcome)
            assert world.tables == tables
            assert phases(admission) == {"a": "running"}
            assert (await submit(admission, "b", 6)).entry.placement == preview.placement
            blocked = admission.preview(Request("c", 8))
            assert isinstance(blocked, Waiting)
            assert blocked.cause == "gpus"

    run(test)


def test_a_circuit_that_does_not_come_up_is_named_and_another_placement_taken(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs")
        async with world.controller() as admission:
            preview = admission.preview(Request("a", 8))
            assert isinstance(preview, Outcome)
            port = preview.placement.circuits[0].a
            world.broken = {port}
            got = await submit(admission, "a", 8)
            assert got.entry.phase == "running"
            assert got.entry.placement is not None
            assert all(port not in circuit for circuit in got.entry.placement.circuits)
            assert str(port) in got.entry.problem
            assert admission.failures().ports == {port: "no light"}
            world.agrees(admission)

    run(test)


def test_a_running_job_s_circuit_that_cannot_be_made_again_holds_nobody_up(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs")
        async with world.controller() as admission:
            await submit(admission, "a", 8)
            [kept] = [each.entry.placement for each in admission.jobs()]
        assert kept is not None
        world.light.clear()  # the OCS has lost everything, and one port does not come back
        world.held.clear()
        world.broken = {kept.circuits[0].a}
        async with world.controller() as admission:
            assert not admission.problem
            assert "no light" in status(admission, "a").entry.problem
            assert (await submit(admission, "b", 4)).entry.phase == "running"
            world.broken, world.failed = set(), Failures({}, {})
            await admission.settled()
            assert status(admission, "a").entry.placement == kept
            world.agrees(admission)

    run(test)


def test_a_dead_switch_makes_a_job_take_others(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs", "vclos")
        async with world.controller() as admission:
            await submit(admission, "before", 4)
            kept = status(admission, "before").entry.placement

            def dead(tenant: Tenant) -> bool:
                if 4 in tenant.placement.gpus:  # the second leaf has died, which its first job finds out
                    world.failed = Failures(dict.fromkeys(range(4, 8), "leaf2 is down"), {})
                    return True
                return False

            world.dead = dead
            got = await submit(admission, "after", 4)
            assert got.entry.phase == "running"
            assert got.entry.placement is not None
            assert set(got.entry.placement.leaves) == {2}
            assert status(admission, "before").entry.placement == kept
            world.agrees(admission)

    run(test)


def test_a_job_that_is_cancelled_while_it_is_admitted_leaves_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs")
        async with world.controller() as admission:
            asked: list[asyncio.Task[JobStatus]] = []

            def at_point(what: str) -> None:
                if what == "reserved":
                    asked.append(asyncio.ensure_future(admission.end("a", "cancelled")))
                world.at_point = lambda _: None

            world.at_point = at_point
            await submit(admission, "a", 8)
            assert (await asked[0]).entry.phase == "cancelled"
            assert status(admission, "a").entry.phase == "cancelled"
            world.agrees(admission)
            await submit(admission, "b", 16)
            assert phases(admission) == {"b": "running"}

    run(test)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_whenever_one_of_several_jobs_is_cancelled_it_leaves_nothing(name: str, tmp_path: Path) -> None:
    """Three are admitted in one turn, and the second one fails at first."""

    async def cancelled_at(moment: int) -> bool:
        world = World(tmp_path / f"jobs{moment}")
        async with world.controller() as admission:
            asked: list[asyncio.Task[JobStatus]] = []
            points = itertools.count()

            def at_point(what: str) -> None:
                if next(points) == moment:
                    asked.append(asyncio.ensure_future(admission.end(name, "cancelled")))

            world.at_point = at_point
            failures = iter([True])
            world.dead = lambda tenant: tenant.name == "b" and next(failures, False)
            for each in ("a", "b", "c"):
                await admission.submit(Request(each, 4))
            while set(phases(admission).values()) != {"running"}:
                await admission.settled()
            if asked:
                assert (await asked[0]).entry.phase == "cancelled"
            world.agrees(admission)
            others = {"a", "b", "c"} - ({name} if asked else set())
            assert phases(admission) == dict.fromkeys(others, "running")
            assert admission.free_gpus == CLUSTER.gpus - 4 * len(others)
            return bool(asked)

    async def test() -> None:
        moment = 0
        while await cancelled_at(moment):
            moment += 1
        assert moment > 20

    run(test)


def test_a_job_keeps_its_gpus_until_its_network_is_undone(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs")
        async with world.controller() as admission:
            await submit(admission, "a", 16)
            await submit(admission, "b", 4)

            def silent(what: str) -> None:
                if what == "before switch1":
                    raise EntrainError("switch1: does not answer")

            world.at_point = silent
            assert (await admission.end("a")).entry.phase == "leaving"
            assert phases(admission) == {"a": "leaving", "b": "waiting"}
            assert admission.problem == "switch1: does not answer"
            world.at_point = lambda _: None
            await admission.settled()
            assert phases(admission) == {"b": "running"}
            world.agrees(admission)

    run(test)


def test_a_job_that_cannot_be_released_holds_nobody_up(tmp_path: Path) -> None:
    """Its switch is silent. The others are admitted and released, also by the next controller."""

    async def test() -> None:
        world = World(tmp_path / "jobs", "vclos")
        async with world.controller() as admission:
            await submit(admission, "a", 4)
            await submit(admission, "b", 4)
            world.unreachable = lambda tenant: tenant.name == "a"
            assert (await admission.end("a")).entry.phase == "leaving"
            assert (await admission.end("b")).entry.phase == "ended"
            await submit(admission, "c", 4)
            assert phases(admission) == {"a": "leaving", "c": "running"}
            assert admission.problem == "switch1: does not answer"
        async with world.controller() as admission:
            assert (await admission.end("c")).entry.phase == "ended"
            assert phases(admission) == {"a": "leaving"}
            world.unreachable = lambda _: False
            await admission.settled()
            assert phases(admission) == {}
            world.agrees(admission)

    run(test)


def test_bad_requests_are_refused_with_key_and_remedy(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs", "vclos")
        async with world.controller() as admission:
            await submit(admission, "a", 4)
            for request, words in [
                (Request("a", 1), "name: job 'a' is running already; choose another name"),
                (Request("b", 17), "gpus: 17 is more than the 16 GPUs of the cluster; ask for fewer"),
                (Request("b", 0), "gpus: is 0; ask for at least 1"),
            ]:
                with pytest.raises(BadInput, match=words):
                    await admission.submit(request)
                with pytest.raises(BadInput, match=words):
                    admission.preview(request)
            with pytest.raises(BadInput, match="there is no job 'b'; known are a"):
                await admission.end("b")
            await admission.end("a")
            await submit(admission, "a", 4)  # the name is free again
            assert phases(admission) == {"a": "running"}

    run(test)


def test_a_watcher_sees_each_step_in_turn(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs")
        async with world.controller() as admission:
            await submit(admission, "all", 16)
            await admission.submit(Request("next", 8))
            seen: list[tuple[str, str | None]] = []
            watching = asyncio.create_task(collect(admission, "next", seen))
            await admission.settled()
            await admission.end("all")
            await admission.end("next")
            await watching
            steps = [step for _, step in seen if step is not None]
            assert steps == [
                "reserved",
                "circuits",
                "tables",
                "ready",
                "leaving",
                "no tables",
                "no circuits",
                "over",
            ]

    run(test)


async def collect(admission: Admission, name: str, seen: list[tuple[str, str | None]]) -> None:
    async for each in admission.watch(name):
        seen.append((each.entry.phase, each.step))


def test_an_end_at_the_moment_of_news_is_an_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path / "jobs", "vclos").controller() as admission:
            await submit(admission, "a", 2)
            admission.look()  # what waits for news is woken, and has not run when the controller ends

    run(test)


def test_a_second_controller_is_told_who_is_primary(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs", CLUSTER)
    with pytest.raises(InUse, match=f"process {os.getpid()} has it open; it is the primary"):
        Ledger(tmp_path / "jobs", CLUSTER)
    ledger.close()
    Ledger(tmp_path / "jobs", CLUSTER).close()


def test_a_ledger_with_jobs_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "jobs", "vclos")
        async with world.controller() as admission:
            await submit(admission, "a", 4)

    run(test)
    other = Cluster(leaves=2, spines=4, servers_per_leaf=2, gpus_per_server=2)
    with pytest.raises(EntrainError, match=r"has jobs of another cluster \(a and others"):
        Ledger(tmp_path / "jobs", other)
    present = Ledger(tmp_path / "jobs", CLUSTER)
    check_cluster(tmp_path / "jobs", CLUSTER)
    with pytest.raises(EntrainError, match=r"has jobs of another cluster \(a and others"):
        check_cluster(tmp_path / "jobs", other)
    present.close()
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(EntrainError, match="is not a ledger of jobs"):
        Ledger(tmp_path / "text", CLUSTER)
