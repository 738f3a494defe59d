"""What makes flows keep to schedules: the choice of it, queueing, waking, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from ebpf import Object, compile_cached, in_netns
from hostbpf import SOURCES
from hostbpf.clock import SlotClock
from hostbpf.flow import netns_cookie
from hostbpf.rates import schedules as slots
from hostbpf.rates.enforcers import NAMES, Enforcers, Name, choose, enforcing, kernel_has
from hostbpf.rates.htb import BUCKETS
from hostbpf.rates.meter import metered
from hostbpf.rates.schedules import NEVER, Enforcer, Schedules, TimedSchedule
from hostbpf.rates.sockets import Descriptor, Socket, SocketDiag
from machine.errors import BadInput, EntrainError, MissingTool
from machine.patience import patience
from machine.record import Record
from tests.hostbpf.conftest import A, B, Connection, Pair, or_skip
from wire.flow import Flow

CLOCK = SlotClock.shared(10_000)  # a slot in which a test fits
SHORT_MS = 2000
"""A slot that ends within a test, but not while a flow is found to be held."""
FRAME_BYTES = 1514
SILENT_S = 0.3
PATIENCE_S = patience(60.0)


@pytest.mark.parametrize(
    ("has", "other"),
    [({"pacing", "edt", "htb"}, Enforcer.EDT), ({"pacing", "htb"}, Enforcer.HTB), ({"pacing"}, None)],
)
def test_choice_goes_by_what_the_kernel_has(has: set[Name], other: Enforcer | None) -> None:
    choice = choose(has=lambda name: name in has)
    assert choice.pacing
    assert choice.other == other
    assert choice.reason


@pytest.mark.parametrize("name", NAMES)
def test_forced_choice_is_all_or_an_error(name: Name) -> None:
    choice = choose(name, has=lambda _: True)
    assert str(choice) == name
    if name != "pacing":
        with pytest.raises(MissingTool, match=f"enforcer {name}: this kernel lacks"):
            choose(name, has=lambda _: False)


RATES = [[5, 5, 0, 0, 7, 0], [0, 0, 0], [5, 5], [0, 3]]


@pytest.mark.parametrize("rates", RATES, ids=str)
def test_next_silence_is_found_from_any_time(rates: list[int]) -> None:
    schedule = TimedSchedule(1000, 10, rates)
    for now in range(980, 1000 + 10 * len(rates)):
        slots_left = range(max((now - 1000) // 10, 0), len(rates))
        begin = next((slot for slot in slots_left if not rates[slot]), None)
        if begin is None:
            assert schedule.silence(now) == (NEVER, 1000 + 10 * len(rates))
            continue
        end = next((slot for slot in range(begin, len(rates)) if rates[slot]), len(rates))
        assert schedule.silence(now) == (1000 + 10 * begin, 1000 + 10 * end)


class Paced:
    """Enforcers of a flow that paces itself, with the system left out: when it is woken, and how often they
    look at their flows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: Record) -> None:
        self.flow = Flow(A, 1, B, 2)
        self.woken_ns: list[int] = []
        self.looks = 0
        idle = tmp_path / "idle"
        idle.write_text("0")
        monkeypatch.setattr("hostbpf.rates.enforcers._IDLE_SETTING", str(idle))
        self.enforcers = Enforcers(
            choose("pacing"), cast(Any, Interface()), CLOCK, None, record, cast(Any, self)
        )
        follow = self.enforcers._follow

        def counted() -> int:
            self.looks += 1
            return follow()

        monkeypatch.setattr(self.enforcers, "_follow", counted)

    def find(self, flow: Flow) -> Socket:
        """As `SocketDiag`'s."""
        return Socket(flow, "slot_cubic", 1, 0)

    def opened(self, wanted: list[Socket]) -> dict[Flow, Paced]:
        """As `SocketDiag`'s."""
        return {each.flow: self for each in wanted}

    def wake(self) -> bool:
        """As a descriptor's."""
        self.woken_ns.append(time.monotonic_ns())
        return True


class Interface:
    """Nothing is done at it."""

    payload = 1448


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Paced]:
    with Record("test-enforcers", records=tmp_path / "records") as record:
        result = Paced(monkeypatch, tmp_path, record)
        thread = threading.Thread(target=result.enforcers.run)
        thread.start()
        try:
            until(lambda: result.enforcers.assign(result.flow) == (Enforcer.PACING, True))
            yield result
        finally:
            result.enforcers.stop()
            thread.join()


def test_paced_flow_is_woken_when_each_of_its_silences_ends(paced: Paced) -> None:
    """In its schedule, with it, or because of another; but not for one that is silent as well, nor
    again when it is not limited any more."""
    slot_ns = 200_000_000
    begin = time.monotonic_ns()
    paced.enforcers.changed(paced.flow, TimedSchedule(begin, slot_ns, [5, 0, 0, 5, 0]))
    until(lambda: len(paced.woken_ns) == 2)
    for woken, due in zip(paced.woken_ns, (begin + 3 * slot_ns, begin + 5 * slot_ns), strict=True):
        assert due <= woken < due + PATIENCE_S * 1e9
    now = time.monotonic_ns()
    paced.enforcers.changed(paced.flow, TimedSchedule(now, 10**12, [0, 5]))
    paced.enforcers.changed(paced.flow, TimedSchedule(now, 10**12, [0, 0]))
    time.sleep(SILENT_S)
    assert len(paced.woken_ns) == 2
    paced.enforcers.changed(paced.flow, TimedSchedule(now, 10**12, [5, 0]))
    until(lambda: len(paced.woken_ns) == 3)
    paced.enforcers.changed(paced.flow, None)
    time.sleep(SILENT_S)
    assert len(paced.woken_ns) == 3


def test_plans_that_do_not_hurry_wake_no_thread(paced: Paced) -> None:
    """A scheduler changes plans all the time, and seldom are they silent earlier than those before."""
    slot_ns = 10**12
    begin = time.monotonic_ns()
    paced.enforcers.changed(paced.flow, TimedSchedule(begin, slot_ns, [5, 5, 0]))
    time.sleep(SILENT_S)
    before = paced.looks
    for rate in range(1, 100):
        paced.enforcers.changed(paced.flow, TimedSchedule(begin, slot_ns, [rate, 5, 0, 0]))
        time.sleep(0.001)
    assert paced.looks == before


@dataclass
class Host:
    """Host a of the pair: its enforcers and schedules."""

    pair: Pair
    enforcers: Enforcers
    schedules: Schedules

    def root_qdisc(self) -> str:
        """Kind of the root qdisc."""
        return root_qdisc(self.pair)


def root_qdisc(pair: Pair) -> str:
    command = ["tc", "-n", pair.a, "qdisc", "show", "dev", "eth0", "root"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


@contextlib.contextmanager
def on(pair: Pair, tmp_path: Path, forced: Name | None = None, clock: SlotClock = CLOCK) -> Iterator[Host]:
    """Enforcers on host a, with a map of schedules of their own: nothing here paces itself."""
    with (
        Object.open(compile_cached(SOURCES / "slot_htb.bpf.c")) as obj,
        Record("test-enforcers", records=tmp_path / "records") as record,
    ):
        obj.load()
        schedules, cookie = obj.maps["schedules"], netns_cookie(pair.a)
        with enforcing(
            "eth0", pair.index_a, clock, schedules, record, netns=pair.a, cookie=cookie, forced=forced
        ) as enforcers:
            own = Schedules(schedules, clock, netns=cookie, link_mbps=1000, enforcement=enforcers)
            yield Host(pair, enforcers, own)


@pytest.fixture
def host(pair: Pair, tmp_path: Path) -> Iterator[Host]:
    if not kernel_has("htb"):
        pytest.skip("this kernel lacks htb or tbf")
    with on(pair, tmp_path, "htb") as result:
        yield result


class Datagrams:
    """A UDP flow from a to b; what is sent is numbered."""

    def __init__(self, pair: Pair, stack: contextlib.ExitStack) -> None:
        def connected(port: int) -> socket.socket:
            result = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            if port:
                result.bind((B, port))
            else:
                result.connect((B, 5000))
            return stack.enter_context(result)

        self._pair = pair
        self.receiver = in_netns(pair.b, lambda: connected(5000))
        self.sender = in_netns(pair.a, lambda: connected(0))
        self.flow = Flow(A, self.sender.getsockname()[1], B, 5000, socket.IPPROTO_UDP)
        self.sent = 0

    def arrives(self, timeout_s: float) -> bool:
        """Whether something arrives."""
        self.receiver.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError):
            return bool(self.receiver.recv(100))
        return False

    def send(self) -> None:
        self.sent += 1
        self.sender.send(str(self.sent).encode())

    def hold(self) -> None:
        """Send until one is held back."""

        def held() -> bool:
            self.send()
            return not self.arrives(SILENT_S) and backlog(self._pair) > 0

        until(held)


@pytest.fixture
def datagrams(pair: Pair) -> Iterator[Datagrams]:
    with contextlib.ExitStack() as stack:
        yield Datagrams(pair, stack)


@pytest.mark.root
def test_silence_holds_and_a_rate_lets_go(host: Host, datagrams: Datagrams) -> None:
    host.schedules.set(datagrams.flow, CLOCK.slot(), [0.0] * 30)
    datagrams.hold()
    assert not datagrams.arrives(SILENT_S)
    host.schedules.set(datagrams.flow, CLOCK.slot(), [10.0] * 30)
    assert datagrams.arrives(PATIENCE_S)
    host.schedules.set(datagrams.flow, CLOCK.slot(), [0.0] * 30)
    datagrams.hold()
    host.schedules.clear(datagrams.flow)
    assert datagrams.arrives(PATIENCE_S)


@pytest.mark.root
def test_schedule_that_ends_leaves_no_flow_limited(pair: Pair, tmp_path: Path, datagrams: Datagrams) -> None:
    if not kernel_has("htb"):
        pytest.skip("this kernel lacks htb or tbf")
    clock = SlotClock.shared(60)
    with on(pair, tmp_path, clock=clock) as host:

        def is_held() -> bool:
            host.schedules.set(datagrams.flow, clock.slot(), [0.0] * 30)
            datagrams.send()
            return not datagrams.arrives(SILENT_S)

        until(is_held)
        assert datagrams.arrives(PATIENCE_S)


def backlog(pair: Pair) -> int:
    """Bytes that wait at the interface of host a."""
    command = ["tc", "-n", pair.a, "-s", "-j", "qdisc", "show", "dev", "eth0"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(each.get("backlog", 0) for each in json.loads(shown))


@pytest.mark.root
def test_any_control_keeps_to_the_rate(
    pair: Pair, tmp_path: Path, connect: Callable[..., Connection]
) -> None:
    """At 8 Mbit/s no more has left at any time than what the rate allows, and what may leave at once. That
    holds also for a flow that gets its rate shortly before a slot ends.

    What arrives is counted in the kernel, by the clock that the rate keeps to: when this process runs does
    not matter, and the wall clock may step.
    """
    if not kernel_has("htb"):
        pytest.skip("this kernel lacks htb or tbf")
    size, rate = 1_000_000, 1e6  # bytes, bytes/s
    clock, fine = SlotClock.shared(SHORT_MS), SlotClock.shared(1)
    before_end_ns = clock.slot_ns // BUCKETS // 2
    connection = connect("cubic")
    flow = Flow.of(connection.sender)
    with on(pair, tmp_path, "htb", clock) as host:
        host.schedules.set(flow, clock.slot(), [0.0] * 20)
        thread = threading.Thread(target=connection.sender.sendall, args=(bytes(size),))
        thread.start()
        arrived = 0

        def is_held() -> bool:
            nonlocal arrived
            connection.receiver.settimeout(SILENT_S)
            try:
                arrived += len(connection.receiver.recv(1 << 20))
            except TimeoutError:
                return backlog(pair) > 0
            return False

        until(is_held)
        with metered(fine, pair.index_b, netns=pair.b, direction="ingress") as meter:
            slot = clock.slot(time.monotonic_ns() + before_end_ns)
            until(lambda: time.monotonic_ns() >= clock.start_ns(slot + 1) - before_end_ns)
            began_ns = time.monotonic_ns()
            host.schedules.set(flow, clock.slot(), [rate * 8 / 1e6] * 20)
            connection.receiver.settimeout(PATIENCE_S)
            while arrived < size:
                arrived += len(connection.receiver.recv(1 << 20))
            thread.join()
            sent = {at: each.payload_bytes for (which, at), each in meter.read().items() if which == flow}
    at_once = rate * clock.slot_ns / 1e9 / BUCKETS
    total = 0
    for at in sorted(sent):
        total += sent[at]
        assert total <= rate * (fine.start_ns(at + 1) - began_ns) / 1e9 + at_once + FRAME_BYTES
    assert total > size / 2


@pytest.mark.root
def test_flows_without_schedule_pass_by(host: Host, datagrams: Datagrams, pair: Pair) -> None:
    with contextlib.ExitStack() as stack:
        host.schedules.set(datagrams.flow, CLOCK.slot(), [0.0] * 30)
        datagrams.hold()
        other = stack.enter_context(
            in_netns(pair.a, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        )
        other.sendto(b"free", (B, 5000))
        assert datagrams.arrives(PATIENCE_S)


@pytest.mark.root
def test_bad_schedules_say_why(host: Host, datagrams: Datagrams) -> None:
    slot = CLOCK.slot()
    with pytest.raises(BadInput, match="the lowest that htb can do"):
        host.schedules.set(datagrams.flow, slot, [0.001])
    host.schedules.set(datagrams.flow, slot, [0.001], silence=True)
    with pytest.raises(BadInput, match="no such TCP connection on this host"):
        host.schedules.set(datagrams.flow._replace(protocol=6), slot, [10.0])
    with pytest.raises(BadInput, match="rate -1"):
        host.schedules.set(datagrams.flow, slot, [-1.0])


@pytest.mark.root
def test_what_cannot_be_limited_is_refused_with_a_remedy(
    pair: Pair, tmp_path: Path, datagrams: Datagrams, connect: Callable[..., Connection]
) -> None:
    with on(pair, tmp_path, "pacing") as host:
        with pytest.raises(EntrainError, match=r"UDP does not keep to schedules; let it use slot_reno"):
            host.schedules.set(datagrams.flow, CLOCK.slot(), [10.0])
        with pytest.raises(EntrainError, match="congestion control cubic does not keep"):
            host.schedules.set(Flow.of(connect("cubic").sender), CLOCK.slot(), [10.0])


@pytest.mark.root
def test_somebody_elses_qdisc_stays(pair: Pair, tmp_path: Path, datagrams: Datagrams) -> None:
    pair.run(pair.a, "tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb")
    with on(pair, tmp_path) as host:
        with pytest.raises(EntrainError, match="somebody has set its root qdisc, htb 1:"):
            host.schedules.set(datagrams.flow, CLOCK.slot(), [10.0])
        assert host.root_qdisc() == "htb"
    assert root_qdisc(pair) == "htb"


@pytest.mark.root
def test_what_a_dead_one_left_is_replaced_and_removed(
    pair: Pair, tmp_path: Path, datagrams: Datagrams
) -> None:
    if not kernel_has("htb"):
        pytest.skip("this kernel lacks htb or tbf")
    pair.run(pair.a, "tc", "qdisc", "add", "dev", "eth0", "root", "handle", "e777:", "htb")
    with on(pair, tmp_path) as host:
        host.schedules.set(datagrams.flow, CLOCK.slot(), [0.0] * 30)
        datagrams.hold()
    assert root_qdisc(pair) == "noqueue"
    datagrams.send()
    assert datagrams.arrives(PATIENCE_S)


_HOLD = """
import signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.hostbpf.rates import test_enforcers as t
from wire.flow import Flow
pair = t.Pair({a!r}, {b!r}, {index_a}, {index_b})
with t.on(pair, Path({directory!r})) as host:
    host.schedules.set(Flow(*{flow!r}), t.CLOCK.slot(), [0.0] * 30)
    print("ready", flush=True)
    signal.pause()
"""


@pytest.mark.root
def test_killed_one_holds_nothing_back(pair: Pair, tmp_path: Path, datagrams: Datagrams) -> None:
    if not kernel_has("htb"):
        pytest.skip("this kernel lacks htb or tbf")
    script = _HOLD.format(
        root=str(Path(__file__).parents[3]),
        directory=str(tmp_path),
        flow=tuple(datagrams.flow),
        **pair.__dict__,
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    datagrams.hold()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: root_qdisc(pair) == "noqueue")
    datagrams.send()
    assert datagrams.arrives(PATIENCE_S)


@pytest.mark.root
def test_interface_that_disappears_is_an_error_and_no_more(
    host: Host, datagrams: Datagrams, pair: Pair
) -> None:
    host.schedules.set(datagrams.flow, CLOCK.slot(), [10.0] * 30)
    pair.run(pair.a, "ip", "link", "del", "eth0")
    host.schedules.set(datagrams.flow, CLOCK.slot(), [20.0] * 30)
    until(lambda: "eth0" in host.enforcers.failure)
    with pytest.raises(EntrainError, match="eth0"):
        host.schedules.set(datagrams.flow._replace(source_port=1), CLOCK.slot(), [10.0])


@pytest.mark.root
def test_silent_socket_goes_on_at_once_when_its_schedule_changes(
    pair: Pair, tmp_path: Path, connect: Callable[..., Connection]
) -> None:
    """It paces itself; without being woken it would sleep for what its first schedule says, five minutes."""
    with (
        or_skip(slots.pacing_registered()) as registered,
        Record("test-enforcers", records=tmp_path / "records") as record,
    ):
        cookie = netns_cookie(pair.a)
        with enforcing(
            "eth0", pair.index_a, CLOCK, registered, record, netns=pair.a, cookie=cookie
        ) as enforcers:
            schedules = Schedules(registered, CLOCK, netns=cookie, enforcement=enforcers)
            connection = connect("slot_cubic")
            flow = Flow.of(connection.sender)
            connection.transfer(100_000)
            schedules.set(flow, CLOCK.slot(), [100.0] * 30)
            until(lambda: enforcers.assign(flow) == (Enforcer.PACING, True))
            for cleared in (False, True):
                schedules.set(flow, CLOCK.slot(), [0.0] * 30)
                connection.sender.sendall(bytes(50_000))
                connection.receiver.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    connection.receiver.recv(1)
                connection.receiver.settimeout(PATIENCE_S)
                if cleared:
                    schedules.clear(flow)
                else:
                    schedules.set(flow, CLOCK.slot(), [100.0] * 30)
                arrived = 0
                while arrived < 50_000:
                    arrived += len(connection.receiver.recv(1 << 20))
                connection.transfer(200_000)


@pytest.mark.root
def test_who_gives_a_flow_its_first_schedule_waits_for_no_other_thread(
    pair: Pair, tmp_path: Path, connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler goes before all else on its processor. A thread that it starts does not, so while others
    like it are busy, it would not come back for many slots."""
    with (
        or_skip(slots.pacing_registered()) as registered,
        Record("test-enforcers", records=tmp_path / "records") as record,
        enforcing("eth0", pair.index_a, CLOCK, registered, record, netns=pair.a) as enforcers,
    ):
        flow = Flow.of(connect("slot_cubic").sender)
        starters: list[threading.Thread] = []
        start = threading.Thread.start

        def noted(thread: threading.Thread) -> None:
            starters.append(threading.current_thread())
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", noted)
        Schedules(registered, CLOCK, netns=0, enforcement=enforcers).set(flow, CLOCK.slot(), [100.0])
        until(lambda: enforcers.assign(flow) == (Enforcer.PACING, True))
    assert threading.current_thread() not in starters


@pytest.mark.root
def test_sockets_are_looked_for_in_their_namespaces_processes_first(
    pair: Pair, connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found in others, too: that of this test's socket is not this process's."""
    sender = connect("cubic").sender
    wanted = Socket(Flow.of(sender), "cubic", os.fstat(sender.fileno()).st_ino, 0)
    opened = {wanted.flow: Descriptor(wanted.flow, os.getpid(), sender.fileno())}
    looked_at: list[Path] = []
    iterdir = Path.iterdir

    def noted(path: Path) -> Iterator[Path]:
        looked_at.append(path)
        return iterdir(path)

    with subprocess.Popen(["ip", "netns", "exec", pair.a, "sleep", "60"]) as other:
        own, others = (Path(f"/proc/{pid}") for pid in (os.getpid(), other.pid))
        places = []
        try:
            until(lambda: (others / "ns/net").readlink() != (own / "ns/net").readlink())
            monkeypatch.setattr(Path, "iterdir", noted)
            for netns in (pair.a, None):
                looked_at.clear()
                with contextlib.closing(SocketDiag(netns)) as diag:
                    assert diag.opened([wanted]) == opened
                places.append((others / "fd" in looked_at, looked_at[-1] == own / "fd"))
        finally:
            other.kill()
    assert places == [(True, True), (False, True)]
