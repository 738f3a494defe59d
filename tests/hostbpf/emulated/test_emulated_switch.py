"""The emulated switch: its table, its file, and its process."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from controlplane.topology import dumbbell, leaf_spine
from entrain.certificates import issue, revoke
from hostbpf.clock import SlotClock
from hostbpf.emulated import server
from hostbpf.emulated.client import channel, load_paths
from hostbpf.emulated.server import TOLERANCE, EmulatedSwitch, PortTable, SwitchFile, load_switch, serving
from hostbpf.rpc import calls as rpc
from hostbpf.rpc import emulated_switch_pb2 as pb
from hostbpf.rpc.calls import message_of
from hostbpf.rpc.emulated_switch_pb2_grpc import EmulatedSwitchStub
from machine import callers
from machine.errors import BadInput, EntrainError
from machine.patience import patience
from machine.tls import identity_of, open_channel
from mininet_topos.emulated_switches import write_files
from tests.silent import silent
from wire.flow import Flow
from wire.slot_header import LANES

pytestmark = pytest.mark.sockets

ROOT = Path(__file__).parents[3]
FLOW, OTHER, THIRD = (Flow("10.0.0.1", port, "10.0.0.2", 7000) for port in (1, 2, 3))
FILE = """
name = "s1"
listen = "127.0.0.1:0"

[[port]]
number = 4
rate_mbps = 1000
"""


class Present:
    slot = 1000

    def __call__(self) -> int:
        return self.slot


@pytest.fixture
def present() -> Present:
    return Present()


@pytest.fixture
def switch(present: Present) -> EmulatedSwitch:
    return EmulatedSwitch("s1", {1: 1000, 4: 500}, present)


def test_what_a_host_plans_is_bounded(
    switch: EmulatedSwitch, present: Present, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FLOWS_PER_HOST", 2)
    elsewhere = OTHER._replace(source="10.0.0.9")
    for flow in (FLOW, OTHER, FLOW, elsewhere):
        switch.update(flow, 4, 1000, [10])
    with pytest.raises(EntrainError, match=r"10\.0\.0\.1 plans 2 flows already"):
        switch.update(THIRD, 4, 1000, [10])
    switch.forget(OTHER)
    switch.update(THIRD, 4, 1000, [10])
    present.slot += 100  # what was planned has passed
    switch.update(OTHER, 4, 1100, [10])


def test_a_request_is_refused_as_a_whole(switch: EmulatedSwitch) -> None:
    service = server._Service(switch, knows=False)
    plans = [
        pb.Schedule(hop=pb.Hop(flow=message_of(FLOW), port=port), slot=1000, rates=[10]) for port in (4, 99)
    ]

    def refuse(*_: object) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        service.UpdateSchedule(pb.UpdateScheduleRequest(schedules=plans), SimpleNamespace(abort=refuse))
    assert not any(loads(switch, OTHER, 1000))


@pytest.mark.parametrize("back", [1, TOLERANCE])
def test_a_clock_that_steps_back_a_little_leaves_plans_as_they_are(
    switch: EmulatedSwitch, present: Present, back: int
) -> None:
    switch.update(FLOW, 4, 1000, [10])
    before = switch.instance
    present.slot -= back
    switch.update(OTHER, 4, 1000, [20])
    assert loads(switch, THIRD, 1000)[0] == 30
    assert switch.instance == before


def test_a_clock_that_went_far_forward_and_back_refuses_nobody(
    switch: EmulatedSwitch, present: Present, capsys: pytest.CaptureFixture[str]
) -> None:
    switch.update(FLOW, 4, 1000, [10])
    present.slot += 60_000
    switch.update(OTHER, 4, 61_000, [10])
    before = switch.instance
    present.slot -= 60_000
    asked = pb.FetchFeedbackRequest(hops=[pb.Hop(flow=message_of(THIRD), port=4)], slot=1000)
    answer = server._Service(switch, knows=False).FetchFeedback(asked, SimpleNamespace())
    assert not any(answer.loads[0].load)
    assert answer.instance != before  # hosts plan anew
    switch.update(FLOW, 4, 1000, [10])
    assert loads(switch, THIRD, 1000)[0] == 10
    assert "s1: the clock has been set back by 60000 slots; plans are dropped" in capsys.readouterr().err


def loads(switch: EmulatedSwitch, flow: Flow, slot: int, port: int = 4) -> list[float]:
    [(_, load)] = switch.load([(flow, port)], slot)
    return load.tolist()


def test_the_table_is_the_sum_of_schedules_without_the_asking_flows_own(switch: EmulatedSwitch) -> None:
    switch.update(FLOW, 4, 1000, [100] * LANES)
    switch.update(OTHER, 4, 1000, list(range(LANES)))
    switch.update(THIRD, 1, 1000, [7])
    assert switch.load([(FLOW, 4), (OTHER, 4), (THIRD, 4)], 1000) == [
        (500, pytest.approx(range(LANES))),
        (500, pytest.approx([100] * LANES)),
        (500, pytest.approx([100 + each for each in range(LANES)])),
    ]


def test_a_schedule_replaces_the_flows_last_one(switch: EmulatedSwitch) -> None:
    for _ in range(3):
        switch.update(FLOW, 4, 1000, [100, 100, 100])
    switch.update(FLOW, 4, 1001, [30])
    assert loads(switch, OTHER, 1000) == [0, 30] + [0] * 8


def test_a_flow_with_another_path_leaves_the_old_one(switch: EmulatedSwitch) -> None:
    switch.update(FLOW, 4, 1000, [100])
    switch.update(FLOW, 1, 1000, [100])
    assert loads(switch, OTHER, 1000, 4)[0] == 0
    assert loads(switch, OTHER, 1000, 1)[0] == 100


def test_slots_pass_and_flows_end(switch: EmulatedSwitch, present: Present) -> None:
    switch.update(FLOW, 4, 1000, list(range(1, 1 + LANES)))
    switch.update(OTHER, 4, 1000, [50] * LANES)
    switch.forget(OTHER)
    switch.forget(OTHER)
    present.slot = 1004
    assert loads(switch, THIRD, 1004) == [5, 6, 7, 8, 9, 10, 0, 0, 0, 0]
    assert loads(switch, THIRD, 1002)[:2] == [3, 4], "a host whose clock is behind"
    present.slot += LANES + TOLERANCE
    assert loads(switch, THIRD, present.slot) == [0] * LANES


def test_what_is_planned_a_window_later_does_not_show_up_now(switch: EmulatedSwitch) -> None:
    """A host whose clock is ahead plans slots that share lanes with those of one that is behind."""
    switch.update(FLOW, 4, 1000 + TOLERANCE, [100] * LANES)
    assert loads(switch, OTHER, 1000 - TOLERANCE) == [0] * LANES
    assert loads(switch, OTHER, 1000 + TOLERANCE) == [100] * LANES


@pytest.mark.parametrize("slot", [1000 - TOLERANCE - 1, 1000 + TOLERANCE + 1])
def test_slots_far_from_the_present_are_refused(switch: EmulatedSwitch, slot: int) -> None:
    message = f"slot {slot} is {TOLERANCE + 1} slots from the present one; .* check clocks"
    with pytest.raises(BadInput, match=message):
        switch.load([(FLOW, 4)], slot)
    with pytest.raises(BadInput, match=message):
        switch.update(FLOW, 4, slot, [1])
    assert loads(switch, OTHER, 1000) == [0] * LANES


def test_unknown_ports_and_long_schedules_are_refused_by_name(switch: EmulatedSwitch) -> None:
    with pytest.raises(BadInput, match="switch s1: has no port 9; there are 1, 4"):
        switch.load([(FLOW, 9)], 1000)
    with pytest.raises(BadInput, match="switch s1: has no port 9; there are 1, 4"):
        switch.update(FLOW, 9, 1000, [1])
    with pytest.raises(BadInput, match=f"{LANES + 1} slots; plan at most {LANES}"):
        switch.update(FLOW, 4, 1000, [1] * (LANES + 1))


# --- over gRPC ---


def test_errors_are_statuses_and_loads_saturate(present: Present) -> None:
    config = SwitchFile(name="s1", listen="127.0.0.1:0", port=(PortTable(number=4, rate_mbps=1.0),))
    with serving(config, present) as address, grpc.insecure_channel(address) as channel:
        stub = EmulatedSwitchStub(channel)
        for flow in (FLOW, OTHER):
            hop = pb.Hop(flow=rpc.message_of(flow), port=4)
            stub.UpdateSchedule(
                pb.UpdateScheduleRequest(schedules=[pb.Schedule(hop=hop, slot=1000, rates=[2**32 - 1])])
            )
        asked = pb.Hop(flow=rpc.message_of(THIRD), port=4)
        answer = stub.FetchFeedback(pb.FetchFeedbackRequest(slot=1000, hops=[asked]))
        assert list(answer.loads[0].load) == [2**32 - 1] + [0] * 9
        asked.port = 9
        with pytest.raises(grpc.RpcError) as refused:
            stub.FetchFeedback(pb.FetchFeedbackRequest(slot=1000, hops=[asked]))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "has no port 9" in refused.value.details()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_an_address_in_use_is_refused(tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if kind == "tcp":
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
        else:
            listen = f"unix:{tmp_path}/s1.sock"
            other = socket.socket(socket.AF_UNIX)
            other.bind(f"{tmp_path}/s1.sock")
            other.listen()
        file = tmp_path / "s1.toml"
        file.write_text(FILE.replace("127.0.0.1:0", listen))
        with pytest.raises(EntrainError, match=listen), serving(load_switch(file)):
            pass
    if kind == "unix":
        other.close()
        with serving(load_switch(file)):
            pass  # what a dead process left is no hindrance


# --- files ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rate_mbps = 1000", "rate = 1000"), r"\[\[port\]\] 1, rate: unknown key; .* use rate_mbps"),
        (("rate_mbps = 1000", "rate_mbps = 0"), r"\[\[port\]\] 1, rate_mbps: must be above 0"),
        (("number = 4", ""), r"\[\[port\]\] 1, number: this key is missing"),
        (("127.0.0.1:0", "here"), "listen: .*"),
        (("rate_mbps = 1000", "rate_mbps = 1000\n[[port]]\nnumber = 4\nrate_mbps = 1"), "4 is listed twice"),
        (("[[port]]\nnumber = 4\nrate_mbps = 1000", ""), "port: this key is missing"),
    ],
)
def test_wrong_switch_files_name_file_and_key(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    file = tmp_path / "s1.toml"
    file.write_text(FILE.replace(*change))
    with pytest.raises(BadInput, match=message) as error:
        load_switch(file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "path: this key is missing"),
        ('[[path]]\ndestination = "h2"\nhops = []', r"\[\[path\]\] 1, destination: 'h2' is no IPv4 address"),
        ('[[path]]\ndestination = "10.0.0.1"', r"\[\[path\]\] 1, hops: this key is missing"),
        (
            '[[path]]\ndestination = "10.0.0.1"\n'
            'hops = [{ switch = "a:1", port = 1 }, { switch = "a:1", port = 2 }]',
            "passes a:1 2 times",
        ),
    ],
)
def test_wrong_paths_files_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "h1.paths.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=message) as error:
        load_paths(file)
    assert str(file) in str(error.value)


def test_files_are_written_for_a_topology(tmp_path: Path) -> None:
    topology = leaf_spine(2, 2, 2, uplink_rate_mbps=400)
    addresses = {switch.name: f"10.9.9.9:{9000 + n}" for n, switch in enumerate(topology.switches)}
    switches, paths = write_files(topology, "source", tmp_path, addresses, certificates=tmp_path / "certs")
    assert load_switch(switches["leaf1"]).capacities == {1: 1000, 2: 1000, 3: 400, 4: 400}
    assert load_switch(switches["spine2"]).listen == "10.9.9.9:9003"
    [far] = [
        each for each in load_paths(paths["h1"]).path if each.destination == topology.host_by_name["h4"].ip
    ]
    assert [(hop.switch, hop.port) for hop in far.hops] == [
        ("10.9.9.9:9000", 3),
        ("10.9.9.9:9002", 2),
        ("10.9.9.9:9001", 2),
    ]
    with pytest.raises(BadInput, match="hash"):
        write_files(topology, "ecmp", tmp_path / "other", addresses)
    assert not (tmp_path / "other").exists()
    assert write_files(dumbbell(2), "ecmp", tmp_path / "single", {"left": "a:1", "right": "a:2"})


# --- the process ---


def started(file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "entrain.cli", "emulated-switch", str(file)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_process_serves_until_a_signal_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "s1.toml"
    file.write_text(FILE)
    process = started(file)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready[0] == "ready", process.communicate()
        address = ready[1].removeprefix("grpc=")
        with grpc.insecure_channel(address) as channel:
            hop = pb.Hop(flow=rpc.message_of(FLOW), port=4)
            slot = SlotClock.shared(60).slot()
            answer = EmulatedSwitchStub(channel).FetchFeedback(pb.FetchFeedbackRequest(slot=slot, hops=[hop]))
        assert answer.loads[0].capacity == 1000
        file.write_text(FILE.replace("127.0.0.1:0", address))
        second = started(file)
        _, said = second.communicate(timeout=patience(60))
        assert second.returncode == 1
        assert address in said
    finally:
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=patience(60))
    assert (process.returncode, output) == (0, ("", ""))


def test_a_wrong_file_ends_the_process_with_status_2(tmp_path: Path) -> None:
    process = started(tmp_path / "missing.toml")
    _, said = process.communicate(timeout=patience(60))
    assert process.returncode == 2
    assert "missing.toml: cannot be read" in said


# --- with certificates ---


@pytest.fixture
def certified(tmp_path: Path) -> tuple[SwitchFile, dict[str, Path]]:
    """An emulated switch on loopback, and the paths files of its two hosts."""
    topology = dumbbell(hosts_per_side=1)
    issue(topology, tmp_path / "certs", days=1)
    addresses = {switch.name: f"127.0.0.1:{n}" for n, switch in enumerate(topology.switches)}
    switches, paths = write_files(topology, "source", tmp_path, addresses, certificates=tmp_path / "certs")
    return load_switch(switches["left"]), paths


def test_a_host_plans_for_its_own_address_only(
    certified: tuple[SwitchFile, dict[str, Path]], present: Present
) -> None:
    config, paths = certified
    own, others = Flow("10.1.1.2", 1, "10.2.1.2", 7000), Flow("10.2.1.2", 1, "10.1.1.2", 7000)
    file = load_paths(paths["h1"])
    with serving(config, present) as address:
        stub = EmulatedSwitchStub(channel(file.path[0].hops[0].model_copy(update={"switch": address}), file))

        def plan(flow: Flow) -> None:
            hop = pb.Hop(flow=rpc.message_of(flow), port=1)
            schedules = [pb.Schedule(hop=hop, slot=present.slot, rates=[5])]
            stub.UpdateSchedule(pb.UpdateScheduleRequest(schedules=schedules), timeout=patience(60))

        plan(own)
        for refused in (
            lambda: plan(others),
            lambda: stub.ForgetFlow(
                pb.ForgetFlowRequest(flows=[rpc.message_of(others)]), timeout=patience(60)
            ),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                refused()
            assert raised.value.code() == grpc.StatusCode.PERMISSION_DENIED
            assert "its own addresses only" in raised.value.details()
        asked = pb.FetchFeedbackRequest(slot=present.slot, hops=[pb.Hop(flow=rpc.message_of(others), port=1)])
        assert stub.FetchFeedback(asked, timeout=patience(60)).loads[0].load[0] == 5


EXHAUSTED, LATE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED
METHOD = "/entrain.emulated.v1.EmulatedSwitch/FetchFeedback"


def ask(address: str, paths: Path, slot: int) -> None:
    """Ask the switch left at `address`, as the host whose file it is."""
    file = load_paths(paths)
    stub = EmulatedSwitchStub(channel(file.path[0].hops[0].model_copy(update={"switch": address}), file))
    hop = pb.Hop(flow=rpc.message_of(Flow("10.1.1.2", 1, "10.2.1.2", 7000)), port=1)
    stub.FetchFeedback(pb.FetchFeedbackRequest(slot=slot, hops=[hop]), timeout=patience(60))


def test_calls_without_a_message_leave_room_for_other_hosts(
    certified: tuple[SwitchFile, dict[str, Path]], present: Present, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MESSAGE_S", 1e4)
    config, paths = certified
    assert config.certificates
    own, calls = identity_of(config.certificates, "h2"), config.places.calls.of_one

    async def test(address: str) -> None:
        async with silent(address, METHOD, 3 * calls, own, "left") as held:
            await held.until(lambda ended: len(ended) == 2 * calls)
            assert {code for code, _ in held.statuses} == {EXHAUSTED}
            assert f"h2 has {calls} calls already" in held.statuses[0][1]
            await asyncio.to_thread(ask, address, paths["h1"], present.slot)
            assert len(held.statuses) == 2 * calls

    with serving(config, present) as address:
        asyncio.run(test(address))


def test_a_call_without_a_message_ends_and_leaves_its_place(
    certified: tuple[SwitchFile, dict[str, Path]], present: Present, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MESSAGE_S", 0.1)
    config, paths = certified
    assert config.certificates
    own, calls = identity_of(config.certificates, "h1"), config.places.calls.of_one

    async def test(address: str) -> None:
        async with silent(address, METHOD, calls, own, "left") as held:
            await held.until(lambda ended: len(ended) == calls)
            assert {code for code, _ in held.statuses} == {LATE}
            monkeypatch.setattr(callers, "MESSAGE_S", callers.MESSAGE_S * 1e4)
            await asyncio.to_thread(ask, address, paths["h1"], present.slot)

    with serving(config, present) as address:
        asyncio.run(test(address))


def test_who_is_no_host_is_not_answered_at_all(tmp_path: Path, present: Present) -> None:
    topology, certs = dumbbell(hosts_per_side=1), tmp_path / "certs"
    issue(topology, certs, days=1, readers=["eve"])
    config = SwitchFile(
        name="left", listen="127.0.0.1:0", certificates=certs, port=(PortTable(number=1, rate_mbps=1.0),)
    )

    async def test(address: str) -> None:
        async with silent(address, METHOD, 1, identity_of(certs, "eve"), "left") as stranger:
            await stranger.until(lambda ended: ended == [grpc.StatusCode.PERMISSION_DENIED])
            assert "eve has no host's address" in stranger.statuses[0][1]

    with serving(config, present) as address:
        asyncio.run(test(address))


def test_a_host_whose_certificate_is_revoked_is_refused(tmp_path: Path, present: Present) -> None:
    topology, certs = dumbbell(hosts_per_side=1), tmp_path / "certs"
    issue(topology, certs, days=1)
    config = SwitchFile(
        name="left", listen="127.0.0.1:0", certificates=certs, port=(PortTable(number=1, rate_mbps=1.0),)
    )
    own = identity_of(certs, "h1")
    with serving(config, present) as address, open_channel(grpc, address, (), own, "left") as opened:
        switch, request = EmulatedSwitchStub(opened), pb.FetchFeedbackRequest(slot=present.slot)
        switch.FetchFeedback(request, timeout=patience(60))
        revoke(certs, ["h1"])
        with pytest.raises(grpc.RpcError, match="has been revoked") as raised:
            switch.FetchFeedback(request, timeout=patience(60))
        assert raised.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_who_has_no_certificate_gets_no_answer(
    certified: tuple[SwitchFile, dict[str, Path]], present: Present
) -> None:
    with serving(certified[0], present) as address, grpc.insecure_channel(address) as plain:
        with pytest.raises(grpc.RpcError) as raised:
            EmulatedSwitchStub(plain).FetchFeedback(pb.FetchFeedbackRequest(), timeout=patience(60))
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


def test_an_address_that_others_reach_needs_certificates(tmp_path: Path) -> None:
    file = tmp_path / "s1.toml"
    file.write_text(FILE.replace("127.0.0.1:0", "10.0.0.5:9700"))
    with pytest.raises(BadInput, match=r"s1\.toml: listen 10\.0\.0\.5:9700: other machines reach it"):
        load_switch(file)


def test_certificates_and_host_belong_together(tmp_path: Path) -> None:
    file = tmp_path / "h1.paths.toml"
    file.write_text('certificates = "certs"\n[[path]]\ndestination = "10.0.0.1"\nhops = []\n')
    with pytest.raises(BadInput, match="certificates and host: give both, or neither"):
        load_paths(file)
