"""MLTCP: the gain in integers, registration, iterations, learning, and what it does to shares of a link."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpf import EbpfError, Object, compile_bpf
from ebpf.struct_ops import available_congestion_controls, kernel_has_links
from hostbpf import mltcp
from hostbpf.controls import controls
from hostbpf.flows import FlowState, read_flows
from hostbpf.mltcp import PLAIN, VARIANTS, Jobs, Params
from machine.errors import BadInput, EntrainError
from machine.patience import patience
from machine.record import Record
from tests.hostbpf.conftest import Connection, Pair, or_skip

ROOT = Path(__file__).parents[2]
BURST = 400_000
SEGMENTS = 375
ATTEMPTS = 5
COMPUTE_S = 0.25
"""The computing phase."""


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with or_skip(mltcp.registered()) as registered:
        yield registered


@contextlib.contextmanager
def loaded(name: str, directory: Path) -> Iterator[Object]:
    """A program in tests/hostbpf/bpf that runs one of the headers of hostbpf/bpf."""
    output = directory / f"{name}.o"
    compile_bpf(Path(__file__).parent / "bpf" / f"{name}.bpf.c", output, includes=[ROOT / "hostbpf" / "bpf"])
    with Object.open(output) as obj:
        obj.load()
        yield obj


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Object]:
    with loaded("window", tmp_path_factory.mktemp("window")) as obj:
        yield obj


@pytest.fixture(scope="module")
def gain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Object]:
    with loaded("gain", tmp_path_factory.mktemp("gain")) as obj:
        yield obj


@pytest.mark.root
@settings(max_examples=50)
@given(
    total=st.integers(1, 1 << 40),
    share=st.fractions(0, 2),
    acked=st.lists(st.integers(1, 64), min_size=1, max_size=30),
)
def test_gain_is_exact(gain: Object, total: int, share: Fraction, acked: list[int]) -> None:
    """Over any acknowledgements the window grows by F(r) = (7 sent + total) / (4 total) times them; less than
    one segment is still due."""
    sent = int(share * total)
    factor = Fraction(7 * min(sent, total) + total, 4 * total)
    credit = grown = 0
    for number in acked:
        question = struct.pack("=IIQQQII", 1792, 256, sent, total, credit, number, 0)
        answer = gain.programs["scale"].test_run(ctx_in=question).ctx
        *_, credit, _, growth = struct.unpack("=IIQQQII", answer)
        grown += growth
    assert 0 <= factor * sum(acked) - grown < 1


@pytest.mark.root
@settings(max_examples=50)
@given(
    gain_quarters=st.integers(1, 8),
    scaled=st.booleans(),
    window=st.integers(2, 100_000),
    share=st.fractions(0, 1),
)
def test_decrease_is_divided_by_the_gain(
    gain: Object, gain_quarters: int, scaled: bool, window: int, share: Fraction
) -> None:
    """Where the job asks for it; a quarter of the window and two segments remain in any case."""
    decrease = int(share * window)
    question = struct.pack("=IIQQIIII", 0, 256 * gain_quarters, 1, 1, scaled, window, decrease, 0)
    answer = gain.programs["decrease"].test_run(ctx_in=question).ctx
    *_, remains = struct.unpack("=IIQQIIII", answer)
    wanted = window - (Fraction(decrease * 4, gain_quarters) if scaled else decrease)
    assert remains == max(2, window // 4, math.ceil(wanted))


_REGAINING = struct.Struct("=IIQQIIIIQQ")
BETA = Fraction(717, 1024)


@pytest.mark.root
@settings(max_examples=50)
@given(sent=st.integers(1, 1 << 40), before=st.integers(2, 1 << 24), share=st.fractions(Fraction(1, 4), 1))
def test_cubic_regains_what_a_scaled_decrease_took_beyond_its_own(
    gain: Object, sent: int, before: int, share: Fraction
) -> None:
    """As fast as 3 (1 - beta) / (1 + beta) segments per round trip says for what remained (RFC 9438, 4.3),
    times F. After a decrease by as much as plain CUBIC's or less, F alone is in force."""
    remained = math.ceil(share * before)
    question = _REGAINING.pack(1792, 256, sent, 1 << 40, before, remained, 717, 0, 0, 0)
    answer = gain.programs["regaining"].test_run(ctx_in=question).ctx
    *_, numerator, denominator = _REGAINING.unpack(answer)
    factor = Fraction(numerator, denominator) / Fraction(7 * sent + (1 << 40), 4 << 40)
    wanted = max(Fraction(1), Fraction(before - remained, before + remained) * (1 + BETA) / (1 - BETA))
    assert wanted * Fraction(63, 64) < factor <= wanted * (1 + Fraction(1, 1 << 40))


_WINDOW = struct.Struct("=4I")
WINDOW_MOST, WINDOW_INITIAL = 1 << 20, 10
INFINITE_SSTHRESH = 0x7FFFFFFF
ANY = st.integers(0, (1 << 32) - 1)
SANE = st.integers(2, WINDOW_MOST)
GARBAGE = st.integers(WINDOW_MOST + 1, (1 << 32) - 1).filter(lambda value: value != INFINITE_SSTHRESH)
"""Such as 0x81104110, which a kernel took for the result of a program that it had skipped."""


def _restored(window: Object, cwnd: int, ssthresh: int, decided: int, noted: int) -> tuple[int, int]:
    question = _WINDOW.pack(cwnd, ssthresh, decided, noted)
    restored_cwnd, restored_ssthresh, *_ = _WINDOW.unpack(
        window.programs["restore"].test_run(ctx_in=question).ctx
    )
    return restored_cwnd, restored_ssthresh


@pytest.mark.root
@settings(max_examples=50)
@given(cwnd=SANE, ssthresh=SANE | st.just(INFINITE_SSTHRESH), decided=ANY, noted=ANY)
def test_a_window_that_a_control_decided_stays(
    window: Object, cwnd: int, ssthresh: int, decided: int, noted: int
) -> None:
    assert _restored(window, cwnd, ssthresh, decided, noted) == (cwnd, ssthresh)


@pytest.mark.root
@settings(max_examples=50)
@given(cwnd=SANE | GARBAGE, ssthresh=SANE | GARBAGE, decided=SANE, noted=ANY)
def test_garbage_is_replaced_by_the_decision(
    window: Object, cwnd: int, ssthresh: int, decided: int, noted: int
) -> None:
    got = _restored(window, cwnd, ssthresh, decided, noted)
    if ssthresh > WINDOW_MOST:
        assert got == (min(cwnd, decided), decided)
    else:
        assert got == (cwnd if cwnd <= WINDOW_MOST else decided, ssthresh)


@pytest.mark.root
@settings(max_examples=50)
@given(cwnd=GARBAGE, ssthresh=GARBAGE, decided=GARBAGE, noted=st.just(0) | SANE)
def test_what_was_decided_from_garbage_is_replaced_by_the_last_decision(
    window: Object, cwnd: int, ssthresh: int, decided: int, noted: int
) -> None:
    assert _restored(window, cwnd, ssthresh, decided, noted) == (noted or WINDOW_INITIAL,) * 2


_STEP = struct.Struct("=QQiIiI")
BOOT_JIFFIES_S = 300  # jiffies begin so much before they overflow 32 bits (INITIAL_JIFFIES)


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Callable[[int], Object]]:
    """Loads the program that warps the clock for a kernel with so many jiffies per second."""
    output = tmp_path / "clock.o"
    source = Path(__file__).parent / "bpf" / "clock.bpf.c"
    compile_bpf(source, output, includes=[ROOT / "hostbpf" / "bpf"])
    with contextlib.ExitStack() as stack:

        def load(hz: int) -> Object:
            obj = stack.enter_context(Object.open(output))
            obj.set_rodata("hz", struct.pack("=I", hz))
            obj.load()
            return obj

        yield load


@pytest.mark.root
@pytest.mark.parametrize("hz", [100, 250, 300, 1000])
@pytest.mark.parametrize("gain_quarters", [1, 3, 4, 8])
def test_the_curves_clock_runs_by_the_gain_whatever_hz(
    clock: Callable[[int], Object], hz: int, gain_quarters: int
) -> None:
    """While the window grows, in steps of 10 to 60 ms, time counts F times, to a jiffy; of pauses of 200 ms
    nothing counts but themselves."""
    warp = clock(hz).programs["warp"]
    rest = shifted = passed = 0
    for step_ms in (10, 20, 31, 40, 200, 60, 1000, 10) * 4:
        jiffies = step_ms * hz // 1000
        answer = warp.test_run(ctx_in=_STEP.pack(gain_quarters, 4, rest, jiffies, 0, 0)).ctx
        *_, rest, _, shift, _ = _STEP.unpack(answer)
        shifted += shift
        passed += jiffies if step_ms < 200 else 0
    assert shifted == math.floor((Fraction(gain_quarters, 4) - 1) * passed)


@pytest.mark.root
def test_hz_is_the_kernels(clock: Callable[[int], Object]) -> None:
    """Jiffies since boot are as many seconds as the monotonic clock says."""
    hz = mltcp.jiffies_per_second()
    answer = clock(hz).programs["read_clocks"].test_run(ctx_in=bytes(16)).ctx
    jiffies, monotonic_ns = struct.unpack("=QQ", answer)
    assert (jiffies - (1 << 32)) / hz + BOOT_JIFFIES_S == pytest.approx(monotonic_ns / 1e9, abs=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slope": -1}, "slope"),
        ({"intercept": 0}, "intercept"),
        ({"total_bytes": 0}, "total_bytes"),
        ({"gap_ms": -5}, "gap_ms"),
    ],
)
def test_bad_parameters_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Params(**wrong)  # type: ignore[arg-type]


@pytest.mark.root
def test_parameters_are_stored_exactly(jobs: Jobs) -> None:
    params = Params(1.75, 0.25, 123_456_789, 12.5, True)
    jobs.set_params(7, params)
    assert jobs.params() == {7: params}
    jobs.remove(7)
    assert jobs.params() == {}


@pytest.mark.root
def test_second_registration_is_refused(jobs: Jobs) -> None:
    assert set(VARIANTS + PLAIN) <= set(available_congestion_controls())
    with pytest.raises(EbpfError) as caught, mltcp.registered():
        pass
    assert caught.value.errno == errno.EEXIST


@pytest.mark.root
def test_controls_that_share_no_maps_cannot_be_joined(jobs: Jobs, tmp_path: Path) -> None:
    with (
        Record("test-controls", records=tmp_path / "records") as record,
        pytest.raises(EbpfError, match="registered by a process whose maps are not in"),
        controls(record, tmp_path / "pins"),
    ):
        pass


@pytest.mark.root
def test_pins_of_another_user_are_not_used(jobs: Jobs, tmp_path: Path) -> None:
    pins = tmp_path / "pins"
    pins.mkdir()
    os.chown(pins, 65534, 65534)
    with (
        Record("test-controls", records=tmp_path / "records") as record,
        pytest.raises(EntrainError, match=f"{pins}: belongs to nobody"),
        controls(record, pins),
    ):
        pass


@pytest.mark.root
@pytest.mark.parametrize("control", VARIANTS + PLAIN)
def test_bytes_arrive_unchanged(jobs: Jobs, connect: Callable[..., Connection], control: str) -> None:
    connection = connect(control)
    assert (
        connection.sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        == control.encode()
    )
    connection.transfer(3_000_000)


def iterate(connections: Sequence[Connection], number: int, compute_s: float) -> bool:
    """Let a job send BURST over each connection so often, and compute in between. Return whether that took as
    long as it should: a busy machine may keep the job from sending for as long as the job computes."""
    computing, sending = [], []
    for again in range(number):
        began = time.monotonic()
        if again:
            time.sleep(compute_s)
        computed = time.monotonic()
        for connection in connections:
            connection.transfer(BURST)
        computing.append(computed - began)
        sending.append(time.monotonic() - computed)
    return max(sending) < compute_s / 4 and max(computing) < compute_s * 1.5


@pytest.mark.root
def test_iterations_and_their_bytes(jobs: Jobs, connect: Callable[..., Connection]) -> None:
    """Bytes are the job's, over its connections; pauses longer than the threshold begin an iteration."""
    for attempt in range(ATTEMPTS):
        mark, compute_s = 110 + attempt, COMPUTE_S * 2**attempt
        jobs.set_params(mark, Params(total_bytes=2 * BURST, gap_ms=compute_s * 500))
        if iterate([connect("mltcp_reno", mark), connect("mltcp_reno", mark)], 4, compute_s):
            break
    ((key, state),) = [(key, state) for key, state in jobs.states.items() if key.job == mark]
    assert state.iteration == 3
    assert state.bytes == state.last_bytes == 2 * BURST
    jobs.remove(mark)
    assert key not in jobs.states


@pytest.mark.root
def test_learning_finds_total_and_gap(jobs: Jobs, connect: Callable[..., Connection]) -> None:
    for attempt in range(ATTEMPTS):
        mark, compute_s = 120 + attempt, COMPUTE_S * 2**attempt
        jobs.set_params(mark, Params())
        if iterate([connect("mltcp_cubic", mark)], 8, compute_s):
            break
    (state,) = (state for key, state in jobs.states.items() if key.job == mark)
    assert state.total_bytes == BURST
    assert state.shortest_gap_ns / 2 < state.gap_ns < state.shortest_gap_ns
    jobs.remove(mark)


@pytest.mark.root
def test_flows_of_other_jobs_are_not_touched(jobs: Jobs, connect: Callable[..., Connection]) -> None:
    jobs.set_params(13, Params(total_bytes=BURST, gap_ms=25))
    connect("mltcp_reno", 14).transfer(BURST)
    connect("mltcp_reno").transfer(BURST)
    assert not {key.job for key in jobs.states} & {0, 13, 14}
    jobs.remove(13)


def begin_at_threshold(pair: Pair, connect: Callable[..., Connection], segments: int) -> None:
    """Connections of `a` begin with that slow start threshold from now on: the kernel remembers it for `b`,
    and takes it from the route when a first connection ends."""
    pair.run(pair.a, "sysctl", "-qw", "net.ipv4.tcp_no_ssthresh_metrics_save=0")
    route = ["10.77.0.0/24", "dev", "eth0", "ssthresh", "lock", str(segments)]
    pair.run(pair.a, "ip", "route", "change", *route)
    pair.run(pair.a, "ip", "tcp_metrics", "flush")
    first = connect()
    first.transfer(1000)
    first.sender.close()
    first.receiver.close()
    deadline = time.monotonic() + patience(60)
    while f"ssthresh {segments}" not in pair.run(pair.a, "ip", "tcp_metrics", "show"):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def growth(pair: Pair, connect: Callable[..., Connection], control: str, mark: int) -> int:
    """By how many segments a new connection's window grows while SEGMENTS are acknowledged, all of them in
    congestion avoidance and none sent twice. On a busy machine some may be: then another connection tries."""
    for _ in range(ATTEMPTS):
        connection = connect(control, mark)
        before = flow_of(pair, connection)
        connection.transfer(SEGMENTS * 1448)
        after = flow_of(pair, connection)
        if after.retransmitted == 0:
            return after.cwnd - before.cwnd
    pytest.fail(f"{control}: each of {ATTEMPTS} connections sent segments twice")


def flow_of(pair: Pair, connection: Connection) -> FlowState:
    port = connection.sender.getsockname()[1]
    (flow,) = (flow for flow in read_flows([pair.a]) if flow.source_port == port)
    return flow


@pytest.mark.root
@pytest.mark.parametrize("variant", range(3), ids=("reno", "cubic", "dctcp"))
def test_the_window_grows_by_the_gain(
    jobs: Jobs, pair: Pair, connect: Callable[..., Connection], variant: int
) -> None:
    """For as many acknowledged segments, one flow's window grows eight times as fast as the other's, if their
    gains are 2 and a quarter; without MLTCP alike."""
    begin_at_threshold(pair, connect, 4)  # in congestion avoidance
    for mark, gain in ((21, 2.0), (22, 0.25)):
        jobs.set_params(mark, Params(0, gain, total_bytes=1, gap_ms=1000))
    fast, slow = (growth(pair, connect, VARIANTS[variant], mark) for mark in (21, 22))
    alike = [growth(pair, connect, PLAIN[variant], mark) for mark in (21, 22)]
    jobs.remove(21)
    jobs.remove(22)
    assert fast > 3 * slow > 0
    assert max(alike) < 2 * min(alike)


@pytest.mark.root
@pytest.mark.parametrize("control", (*VARIANTS, *PLAIN))
def test_restored_windows_are_counted(
    jobs: Jobs, pair: Pair, connect: Callable[..., Connection], control: str
) -> None:
    """Such as one from a threshold that no window reaches."""
    begin_at_threshold(pair, connect, 2 * WINDOW_MOST)
    before = jobs.restored_windows()
    connection = connect(control)
    connection.transfer(BURST)
    assert jobs.restored_windows() > before
    assert flow_of(pair, connection).cwnd <= WINDOW_MOST


@pytest.mark.root
@pytest.mark.skipif(not kernel_has_links(), reason="needs Linux 6.4: tests/ebpf/test_struct_ops.py instead")
def test_registration_ends_with_a_killed_process() -> None:
    """Even `kill -9` leaves no control behind."""
    if "slot_reno" in available_congestion_controls():
        pytest.skip("another process of this machine holds the congestion controls")
    program = (
        "from ebpf import Object\n"
        "from ebpf.struct_ops import compile_control\n"
        "from hostbpf.mltcp import SOURCES\n"
        "obj = Object.open(compile_control(SOURCES / 'slot_pacing.bpf.c')); obj.load()\n"
        "link = obj.register('slot_reno'); print('registered', flush=True); input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"registered\n"
    assert "slot_reno" in available_congestion_controls()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + patience(60)
    while "slot_reno" in available_congestion_controls():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
